"""`dpfed deploy`: write a ready Flower app for a configuration."""

from __future__ import annotations

from pathlib import Path

from dpfed.cli.output import Flag, Load, Settings, print_json, training_extra
from dpfed.config.own_code import load_files, named_files


def deploy(
    config: str,
    *,
    out: Path,
    settings: Settings = None,
    load: Load = None,
    json: Flag = False,
) -> None:
    """Write a Flower app that runs a configuration on real nodes; docs/deploy.md says how to start them.

    Example: dpfed deploy dp-fedavg-digits --out app --set run.release=true

    Parameters
    ----------
    config
        A TOML file, or the name of a preset.
    out
        The folder of the app, new or empty.
    settings
        table.key=value on top of the configuration; may be given again.
    load
        A Python file of your own, which registers schemes, methods, networks or data (docs/own-methods.md); may be
        given again. It becomes part of the app.
    json
        Print the list of written files as one JSON document.
    """
    with training_extra("dpfed deploy"):
        from dpfed.cli.run_on_terminal import read_configuration
        from dpfed.engines.flower.app_folder import default_run_folder, write_app
        from dpfed.engines.flower.settings import check_engine
        from dpfed.runs.experiment import build
    load_files(load or [])
    checked, name = read_configuration(config, settings or [])
    check_engine(checked)
    experiment = build(checked)  # ConfigError if it cannot be deployed, before any node receives it
    write_app(experiment.config, out, name=name, own_code=named_files())
    nodes = checked.federation.clients
    simulated = experiment.privacy_target is not None and checked.run.randomness == "simulated"
    if json:
        print_json({"app": str(out), "clients": nodes, "randomness": checked.run.randomness})
        return
    print(
        f"{out}: a Flower app for {nodes} clients, a SuperNode each; its run folder will be {default_run_folder(out)}, "
        "where the SuperLink starts."
    )
    if checked.data.partition == "nodes":
        print(f"Each node trains on its own samples: load_data in {out}/dpfed_app/client_app.py reads them.")
    else:
        print(f"Try it here: flwr run {out} local --stream --federation-config 'num-supernodes={nodes}'")
    if simulated:
        print("note: every node knows run.seed, the source of noise and cohorts: for a release --set run.release=true")
