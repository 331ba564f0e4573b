"""A job with client-level privacy in NVFlare's simulator: python job.py [FOLDER]. Privacy is the controller and the two
filters; the ledger is FOLDER/ledger.jsonl."""

import sys
from pathlib import Path

from digits import Network
from nvflare.app_opt.pt.job_config.model import PTModel
from nvflare.job_config.api import FedJob, FilterType
from nvflare.job_config.script_runner import ScriptRunner

from accounting import Ledger
from dpfed.engines.nvflare.client_level_controller import ClientLevelFedAvg
from dpfed.engines.nvflare.update_filters import CompressUpdate, KeepTerms

CLIENTS, DELTA = 4, 1e-3
HERE = Path(__file__).parent


def private_job(ledger):
    job = FedJob(name="private-digits", min_clients=CLIENTS)
    controller = ClientLevelFedAvg(
        clients=CLIENTS,
        cohort=2,
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
    for site in (f"site-{number + 1}" for number in range(CLIENTS)):
        job.to(ScriptRunner(script=str(HERE / "client.py"), script_args=str(CLIENTS)), site)
        job.to(str(HERE / "digits.py"), site)
        job.to(KeepTerms(), site, tasks=["train"], filter_type=FilterType.TASK_DATA)
        job.to(CompressUpdate(), site, tasks=["train"], filter_type=FilterType.TASK_RESULT)
    return job


if __name__ == "__main__":
    folder = Path(sys.argv[1] if len(sys.argv) > 1 else "nvflare-run").absolute()
    folder.mkdir(parents=True, exist_ok=True)
    ledger = folder / "ledger.jsonl"
    private_job(ledger).simulator_run(str(folder / "workspace"), threads=CLIENTS)
    print(Ledger.read(ledger).guarantee(DELTA))
