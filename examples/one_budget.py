"""One budget for several experiments on the same clients.

Every run is charged to one ledger; a run ends early or does not begin if the budget is spent. The budget's epsilon
holds even if runs are chosen by earlier results."""

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
