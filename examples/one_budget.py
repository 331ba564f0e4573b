"""One budget over several experiments on the same clients: every run is charged to one ledger, and the one that it no
longer pays for ends early or does not begin. Whatever is chosen by looking at results, epsilon is the budget's."""

import dpfed
from accounting.ledger.project import ProjectLedger

PLAN = {"federation.rounds": 8, "privacy.epsilon": None, "privacy.noise_multiplier": 1.0}

project = ProjectLedger.create("project.jsonl", clients=650, epsilon=3.0, delta=1e-3)
for rate in (0.1, 0.3, 0.5):
    try:
        done = dpfed.run("dp-fedavg-digits", {**PLAN, "local.learning_rate": rate}, ledger="project.jsonl")
    except dpfed.errors.RunError as refused:
        print(f"learning rate {rate}: {refused}")
        continue
    summary, (units, left) = done.summary, project.units or (0, 0)
    print(
        f"learning rate {rate}: {summary['test_accuracy']:.1%} after {summary['rounds']} rounds; {left} of {units} "
        "units left"
    )
