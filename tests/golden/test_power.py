"""The power of the golden net: planted changes are seen in every method that they reach."""

import pytest
from golden.answers import differences, stored
from golden.plants import PLANTS, planted
from golden.record import answer_of
from golden.settings import SETTINGS, TRAINED

STORED = stored()
WITH_TRAINING = {"last batch is skipped", "rate is larger"}
"""Plants in local training, which no run with given updates reaches."""
CHEAP = {
    "clip is larger": "gauss dp-fedavg z",
    "noise is larger": "masked dp-fedavg unrotated",
    "divisor is larger": "gauss dp-fedavg z",
    "client is left out": "plain fedavg",
    "streams are exchanged": "plain qsgd",
    "round is off by one": "plain fedpm",
    "last batch is skipped": "trained fedavg",
    "rate is larger": "trained fedmrn",
    "server rate is larger": "plain stochastic-sign",
    "momentum is lost on resume": "trained server momentum resumed",
    "mask has another seed": "plain fedavg-randk",
    "correction is left out": "correlated root momentum",
    "state is kept": "trained momentum decay",
}
"""A quick setting in which each plant is seen."""
WORDS = ["plain", "gauss", "adaptive", "correlated", "shares aborts", "uploads", "masked", "integers server", "coins"]
WORDS += ["dithered", "protocol dp-fedavg"]


def differences_under(plant: str, name: str, folder) -> tuple[list[str], list[str]]:
    """Return where the plant had an effect, and what of the setting's answer differs."""
    with planted(plant) as reached:
        try:
            now = answer_of(name, folder, audited=False)
        except Exception as error:  # a plant may make a run impossible: that is seen, too
            return reached, [repr(error)]
    before = {key: value for key, value in STORED[name].items() if key != "audit"}
    return reached, list(differences(before, now))


def test_each_plant_has_a_quick_setting():
    assert CHEAP.keys() == PLANTS.keys()


@pytest.mark.parametrize("plant", PLANTS)
def test_plant_is_seen(plant, tmp_path):
    reached, found = differences_under(plant, CHEAP[plant], tmp_path / "run")
    assert reached
    assert found


@pytest.mark.slow
@pytest.mark.parametrize("plant", PLANTS)
def test_plant_is_seen_in_every_setting_that_it_reaches(plant, tmp_path):
    given = [name for name in SETTINGS if name.startswith(tuple(WORDS))]
    names = [*([] if plant in WITH_TRAINING else given), *TRAINED]
    unseen, count = [], 0
    for number, name in enumerate(names):
        reached, found = differences_under(plant, name, tmp_path / str(number))
        count += bool(reached)
        if reached and not found:
            unseen.append(f"{name}: {sorted(set(reached))}")
    assert not unseen
    assert count
