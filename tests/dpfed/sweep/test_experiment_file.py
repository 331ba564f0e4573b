"""What is wrong with an experiment is said before anything runs, with its place and what to do."""

import pytest

from dpfed.cli import status
from dpfed.errors import ConfigError
from dpfed.sweep.plan import plan

HEADER = "row,x,quantity,value,where\n"


def refusal(path, **options):
    with pytest.raises(ConfigError) as caught:
        plan(path, profile=options.pop("profile", None), out=None, **options)
    return str(caught.value)


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("title =", "titel =", ["titel: unknown key", "Did you mean 'title'?", "title: is missing"]),
        ('note = "one', 'nots = "one', ["profiles.smoke.nots: unknown key", "Did you mean 'note'?"]),
        ("[[row]]\nname = ", "[[row]]\nnane = ", ["row.0.nane: unknown key", "row.0.name: is missing"]),
        ('name = "DP-FedAvg"', 'name = "FedAvg"', ["row 'FedAvg' is there twice"]),
        ('"run.seed" = [1, 2]', '"run.sede" = [1, 2]', ["row 'FedAvg' at run.sede=1", "Did you mean 'seed'?"]),
        ('"run.seed" = [1, 2]', '"run.seed" = []', ["axes.run.seed", "at least 1 item"]),
        ('"run.seed" = [1, 2]', '"run.seed" = [1, 1]', ["axis 'run.seed'", "must differ"]),
        ('"run.seed" = [1, 2]', '"run.seed" = 1', ["axes.run.seed=1", "valid list"]),
        ('["test_accuracy", "epsilon"]', '["accuracy", "epsilon"]', ["quantities", "Did you mean 'test_accuracy'?"]),
        ('["test_accuracy", "epsilon"]', "[]", ["quantities", "at least 1 item"]),
        ('x = "privacy.noise_multiplier"', 'x = "privacy.noise"', ["x='privacy.noise' is no axis"]),
        ('method.name = "fedavg"', 'preset = "fedavg-digit"', ["fedavg-digit", "'fedavg-digits'"]),
        ('data.name = "digits"', 'data.name = "digit"', ["row 'FedAvg'", "Did you mean 'digits'?"]),
        ('{ name = "mlp"', '{ name = "mlq"', ["row 'FedAvg'", "Did you mean 'mlp'?"]),
        (
            'name = "FedAvg"',
            'name = "FedAvg"\nset = { "privacy.clip_norm" = 1.0, "privacy.noise_multiplier" = 1.0 }',
            ["never private"],
        ),
        ('name = "FedAvg"', 'name = "FedAvg"\ndrop = ["privacy"]', ["drop 'privacy'", "no such key"]),
        ('note = "one seed"', 'drop = ["privacy.epsilon"]', ["drop 'privacy.epsilon'", "no row"]),
        ('note = "one seed"', 'rows = ["FedAvgg"]', ["there is no row 'FedAvgg'", "Did you mean 'FedAvg'?"]),
        ('name = "FedAvg"', 'name = "dp fedavg"\n[[row]]\nname = "FedAvg"\n[[row]]\nname = "DP/FedAvg"', ["share the"]),
        ('name = "FedAvg"', 'name = "FedAvg"\ntune = { "local.learning_rate" = [0.1] }', ["without a [tune] table"]),
        ("rounds = 2", "rounds = 2, rounds = 3", ["not TOML"]),
        ('published = "numbers.csv"', 'published = "other.csv"', ["other.csv", "cannot be read"]),
    ],
)
def test_a_wrong_file_is_refused(experiment_file, old, new, words):
    found = refusal(experiment_file((old, new)), profile="smoke" if "one seed" in old else None)
    for word in words:
        assert word in found


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("FedAwg,,test_accuracy,1,p", ["line 2", "there is no row 'FedAwg'", "Did you mean 'FedAvg'?"]),
        ("DP-FedAvg,7,test_accuracy,1,p", ["no run has privacy.noise_multiplier=7", "values are 1, 2"]),
        ("FedAvg,,seconds,1,p", ["'seconds' is no quantity here"]),
        ("FedAvg,,epsilon,about 1,p", ["must be a number"]),
        ("FedAvg,,epsilon,1,p, 9", ["5 columns", "quotes"]),
        ("FedAvg,,epsilon,1", ["5 columns"]),
        ("FedAvg,,epsilon,1,p\nFedAvg,,epsilon,1,p", ["is there twice"]),
    ],
)
def test_a_published_number_that_no_run_can_be_held_against_is_refused(experiment_file, line, words):
    found = refusal(experiment_file(numbers=f"{HEADER}{line}\n"))
    for word in words:
        assert word in found


def test_a_csv_with_other_columns_is_refused(experiment_file):
    assert "the first line must be row,x,quantity,value,where" in refusal(experiment_file(numbers="row,value\n"))


def test_unknown_profiles_and_rows_are_refused(experiment_file):
    assert "the file has smoke" in refusal(experiment_file(), profile="smok")
    assert "Did you mean 'FedAvg'?" in refusal(experiment_file(), only=["Fedavg"])
    only_one = experiment_file(('note = "one seed"', 'rows = ["FedAvg"]'))
    assert "not in this profile, which has FedAvg" in refusal(only_one, profile="smoke", only=["DP-FedAvg"])


def test_tuning_needs_a_validation_set(experiment_file):
    tune = '\n[tune]\naxes = { "local.learning_rate" = [0.1, 0.3] }\n'
    assert "needs a validation set" in refusal(experiment_file(more=tune))
    both = '\n[tune]\nvalidation = 100\naxes = { "privacy.noise_multiplier" = [0.1, 0.3] }\n'
    untuned = ('name = "FedAvg"', 'name = "FedAvg"\ntune = {}')
    assert "is an axis and tuned" in refusal(experiment_file(untuned, more=both))


def test_the_command_line_says_wrong_input_with_status_2(experiment_file, capsys):
    path = experiment_file(("title =", "titel ="))
    assert status(["sweep", str(path), "--dry-run"]) == 2
    assert "titel: unknown key" in capsys.readouterr().err
    assert status(["sweep", str(experiment_file()), "--jobs", "0"]) == 2
    assert status(["sweep", str(experiment_file()), "--selection-eta", "-0.5"]) == 2
