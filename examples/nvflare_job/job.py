"""A job with client-level privacy in NVFlare's simulator: python job.py [FOLDER].

With --export it is written to FOLDER/private-digits, for `nvflare job submit`. The controller and two filters add
privacy; the ledger is FOLDER/ledger.jsonl."""

import argparse
from pathlib import Path

from digits import Network
from nvflare.app_opt.pt.job_config.model import PTModel
from nvflare.job_config.api import FedJob, FilterType
from nvflare.job_config.script_runner import ScriptRunner

from accounting import Ledger
from dpfed.engines.nvflare.client_level_controller import ClientLevelFedAvg
from dpfed.engines.nvflare.update_filters import CompressUpdate, KeepTerms

DELTA = 1e-3
HERE = Path(__file__).parent


def private_job(ledger, clients):
    job = FedJob(name="private-digits", min_clients=clients)
    controller = ClientLevelFedAvg(
        clients=clients,
        cohort=2 if clients > 2 else 1,
        rounds=3,
        clip_norm=1.0,
        noise_multiplier=0.8,
        delta=DELTA,
        keep=0.4,
        ledger=str(ledger),
    )
    job.to_server(controller)
    job.to_server(PTModel(Network()))
    job.to_server(str(HERE / "digits.py"))
    for site in (f"site-{number + 1}" for number in range(clients)):
        job.to(ScriptRunner(script=str(HERE / "client.py"), script_args=str(clients)), site)
        job.to(str(HERE / "digits.py"), site)
        job.to(KeepTerms(), site, tasks=["train"], filter_type=FilterType.TASK_DATA)
        job.to(CompressUpdate(), site, tasks=["train"], filter_type=FilterType.TASK_RESULT)
    return job


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", nargs="?", default="nvflare-run", type=Path)
    parser.add_argument("--clients", type=int, default=4)
    parser.add_argument("--export", action="store_true")
    given = parser.parse_args()
    folder = given.folder.absolute()
    folder.mkdir(parents=True, exist_ok=True)
    ledger = folder / "ledger.jsonl"
    job = private_job(ledger, given.clients)
    if given.export:
        job.export_job(str(folder))
    else:
        job.simulator_run(str(folder / "workspace"), threads=given.clients)
        print(Ledger.read(ledger).guarantee(DELTA))
