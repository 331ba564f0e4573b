"""What summary.json says beside epsilon, worked out again from configuration and ledger."""

from __future__ import annotations

from typing import Any

from accounting.ledger import LocalRelease, Release
from dpfed.audit.run_files import RunFiles
from dpfed.config.tables import Config
from dpfed.methods.catalogue import method
from dpfed.methods.choices import in_integers, is_linear, sends_coins
from dpfed.run.protection import CHARGED_LOSSES, not_protected, on_nodes
from dpfed.run.server_view import hostile_clients_view, server_view
from dpfed.run.summary import schedule_facts


def named_by_the_configuration(files: RunFiles) -> dict[str, Any]:
    """Keys of the summary that follow from the configuration alone."""
    config = files.config
    return {
        "method": config.method.name,
        "dataset": config.data.name,
        "model": config.model.name,
        "aggregation": config.aggregation.kind,
        "seed": config.run.seed,
        "for_release": config.run.for_release,
    }


def named_by_the_ledger(files: RunFiles) -> dict[str, Any]:
    """Keys of the summary that follow from what was released, and its promise; none where nothing was."""
    releases = files.trusted_ledger.releases
    if not releases:
        return {}
    last = releases[-1]
    found: dict[str, Any] = {
        "accountant": files.guarantee.method,
        "noise_placement": last.noise_placement if isinstance(last, Release) else "local steps",
        "clip_norm": files.published[-1].clip_norm if files.published else None,
    }
    if isinstance(last, LocalRelease):
        return found | {
            "noise": "gaussian",
            "noise_multiplier": last.noise_std / last.clip_norm,
            "server_epsilon": None,
            "hostile_clients_epsilon": None,
        }
    goal = files.promise.goal
    against_server, against_clients = (
        view(files.config, goal, len(releases)) for view in (server_view, hostile_clients_view)
    )
    return found | {
        "noise": "coins" if goal.noise_multiplier is None else goal.integers.kind if goal.integers else "gaussian",
        "noise_multiplier": goal.noise_multiplier,
        **schedule_facts(goal),
        "server_epsilon": against_server.epsilon if against_server else None,
        "server_epsilon_rounds": against_server.rounds if against_server else None,
        "hostile_clients_epsilon": against_clients.epsilon if against_clients else None,
        "hostile_clients_epsilon_rounds": against_clients.rounds if against_clients else None,
    }


def protection_problem(files: RunFiles) -> str | None:
    """Whether summary.json leaves out something that the stated epsilon does not cover. The note on public samples
    names the data, which is not in the folder: of it only that it is there."""
    stated = files.summary.get("not_protected")
    if not isinstance(stated, list) or not all(isinstance(one, str) for one in stated):
        return "not_protected is no list of notes"
    config, public = files.config, []
    if config.data.public:
        public = [one for one in stated if one.startswith(f"{config.data.public} samples ") and "not protected" in one]
        if len(public) != 1:
            return "not_protected does not name the public samples"
    set_aside = [one for one in stated if one.startswith(f"{config.data.validation} training samples are set aside")]
    if len(set_aside) != (config.data.validation is not None):
        return "not_protected does not name the validation samples"
    expected = not_protected([*public, *set_aside], config, decodes_first(config))
    if files.trusted_ledger.header.plan is None:  # of version 0.2
        expected = tuple(one for one in expected if one != CHARGED_LOSSES)
    nodes = config.aggregation.kind == "protocol"  # of which the clients may be nodes of an engine: no file names one
    lacking = [one for one in expected if one not in stated and not (nodes and on_nodes(one) in stated)]
    return f"not_protected lacks {lacking[0]!r}" if lacking else None


def decodes_first(config: Config) -> bool:
    """Whether a trusted server decodes every upload before it clips."""
    chosen = method(config.method.name)
    if config.privacy is None or config.privacy.release != "sum" or in_integers(config):
        return False
    if sends_coins(config, chosen) or chosen.dithered:
        return False
    return not is_linear(config, chosen)
