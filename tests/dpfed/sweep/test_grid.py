"""Which runs an experiment has, and with which settings: a later level wins."""

import json

import pytest

from dpfed.cli import status
from dpfed.errors import ConfigError
from dpfed.sweep.plan import plan


def cells_of(path, profile=None, **options):
    return plan(path, profile=profile, out=None, **options).grid.cells


def test_every_row_at_every_point_of_its_axes(experiment_file):
    cells = cells_of(experiment_file())
    assert [(cell.row, dict(cell.at)) for cell in cells] == [
        ("FedAvg", {"run.seed": "1"}),
        ("FedAvg", {"run.seed": "2"}),
        ("DP-FedAvg", {"run.seed": "1", "privacy.noise_multiplier": "1"}),
        ("DP-FedAvg", {"run.seed": "1", "privacy.noise_multiplier": "2"}),
        ("DP-FedAvg", {"run.seed": "2", "privacy.noise_multiplier": "1"}),
        ("DP-FedAvg", {"run.seed": "2", "privacy.noise_multiplier": "2"}),
    ]
    assert [cell.config.run.seed for cell in cells] == [1, 2, 1, 1, 2, 2]
    assert [cell.config.privacy.noise_multiplier for cell in cells[2:]] == [1.0, 2.0, 1.0, 2.0]
    assert cells[0].config.privacy is None
    assert cells[3].folder == "dp-fedavg/run.seed=1__privacy.noise_multiplier=2"
    assert len({cell.folder for cell in cells}) == 6


def test_every_row_has_a_folder_inside_that_of_the_sweep(experiment_file, tmp_path):
    """Planted: names without a letter of folder names, which once were folders at the root."""
    names = ('name = "FedAvg"', 'name = "метод"'), ('name = "DP-FedAvg"', 'name = "..."')
    path = experiment_file(*names, numbers="row,x,quantity,value,where\n")
    found = plan(path, profile=None, out=tmp_path / "out")
    folders = [found.folder / cell.folder for cell in found.grid.cells]
    assert all(folder.is_relative_to(tmp_path / "out") for folder in folders)
    assert len({folder.parent for folder in folders}) == 2


def test_a_profile_comes_last_and_replaces_axes_that_a_row_has(experiment_file):
    more = '"privacy.noise_multiplier" = [3.0]\n'
    path = experiment_file(('axes = { "run.seed" = [1] }', f'axes."run.seed" = [1]\naxes.{more}'))
    cells = cells_of(path, "smoke")
    assert [(cell.row, cell.config.federation.rounds) for cell in cells] == [("FedAvg", 1), ("DP-FedAvg", 1)]
    assert cells[0].config.privacy is None  # the profile's axis is one of the other row's
    assert cells[1].config.privacy.noise_multiplier == 3.0


def test_an_axis_that_no_row_has_is_new_to_all(experiment_file):
    path = experiment_file(('axes = { "run.seed" = [1] }', 'axes = { "local.learning_rate" = [0.1, 0.2] }'))
    assert [cell.config.local.learning_rate for cell in cells_of(path, "smoke", only=["FedAvg"])] == [0.1, 0.2] * 2


def test_settings_from_the_command_line_win_and_stay_on_their_axis(experiment_file):
    cells = cells_of(experiment_file(), "smoke", settings=["run.seed=7", "federation.rounds=9"], only=["DP-FedAvg"])
    assert {cell.config.run.seed for cell in cells} == {7}
    assert {cell.config.federation.rounds for cell in cells} == {9}
    assert cells[0].at == {"run.seed": "7", "privacy.noise_multiplier": "1"}


def test_a_row_has_its_own_preset_and_drops_keys_tables_and_axes(experiment_file):
    row = '[[row]]\nname = "Preset"\npreset = "dp-fedavg-digits"\ndrop = ["privacy.epsilon", "run.seed"]\n'
    row += 'set = { "method.name" = "dp-fedavg", privacy.noise_multiplier = 4.0 }\n\n[profiles.smoke]'
    (cell,) = cells_of(experiment_file(("[profiles.smoke]", row)), only=["Preset"])
    assert (cell.config.privacy.epsilon, cell.config.privacy.clip_norm) == (None, 2.0)  # clip norm: the preset's
    assert cell.config.privacy.noise_multiplier == 4.0
    assert (cell.config.run.seed, dict(cell.at), cell.folder) == (0, {}, "preset/run")


def test_a_full_profile_is_taken_where_none_is_named(experiment_file):
    path = experiment_file(more="\n[profiles.full]\nset = { federation.rounds = 50 }\n")
    assert {cell.config.federation.rounds for cell in cells_of(path)} == {50}


PARTITIONS = """
partition = [
    { label = "IID", data.partition = "iid" },
    { label = "Non-IID-1", data.partition = "dirichlet", data.alpha = 0.3 },
]
"""


def test_one_axis_can_set_several_keys_under_a_label(experiment_file):
    axis = '"run.seed" = [1, 2]'
    numbers = "row,x,quantity,value,where\nFedAvg,Non-IID-1,test_accuracy,80,p. 1\n"
    path = experiment_file((axis, axis + PARTITIONS), ('x = "privacy.noise_multiplier"', 'x = "partition"'))
    path.with_name("numbers.csv").write_text(numbers)
    planned = plan(path, profile=None, out=None, only=["FedAvg"])
    assert [
        (c.at["partition"], c.config.data.partition, getattr(c.config.data, "alpha", None))
        for c in planned.grid.cells[:2]
    ] == [("IID", "iid", None), ("Non-IID-1", "dirichlet", 0.3)]
    assert planned.published[0].x == "Non-IID-1"


def test_what_a_profile_sets_wins_over_the_table_of_an_axis(experiment_file):
    axis, once = '"run.seed" = [1, 2]', '{ "federation.rounds" = 1 }'
    path = experiment_file((axis, axis + PARTITIONS), (once, '{ data.partition = "iid", data.alpha = 0.5 }'))
    with pytest.raises(ConfigError, match=r"data\.alpha with data\.partition='iid': is for dirichlet"):
        cells_of(path, "smoke", only=["FedAvg"])
    path = experiment_file((axis, axis + PARTITIONS), (once, '{ data.partition = "dirichlet", data.alpha = 0.5 }'))
    cells = cells_of(path, "smoke", only=["FedAvg"])
    assert [(cell.config.data.partition, cell.config.data.alpha) for cell in cells] == [("dirichlet", 0.5)] * 2


def test_a_published_x_is_found_however_it_is_written(experiment_file):
    numbers = "row,x,quantity,value,where\nDP-FedAvg,2.00,test_accuracy,80,p. 1\n"
    (found,) = plan(experiment_file(numbers=numbers), profile=None, out=None).published
    assert found.x == "2"


TUNE = """
[tune]
validation = 100
seed = 5
axes = { "local.learning_rate" = [0.1, 0.3] }
"""


def test_tuning_has_one_run_for_each_candidate_at_each_point_without_the_seed(experiment_file):
    grid = plan(experiment_file(more=TUNE), profile=None, out=None).grid
    assert [(one.row, dict(one.at)) for one in grid.choices] == [
        ("FedAvg", {}),
        ("DP-FedAvg", {"privacy.noise_multiplier": "1"}),
        ("DP-FedAvg", {"privacy.noise_multiplier": "2"}),
    ]
    for choice in grid.choices:
        assert [run.config.local.learning_rate for run in choice.runs] == [0.1, 0.3]
        assert {(run.config.run.seed, run.config.data.validation) for run in choice.runs} == {(5, 100)}
    assert [cell.choice for cell in grid.cells] == [0, 0, 1, 2, 1, 2]
    assert {cell.config.data.validation for cell in grid.cells} == {None}  # the final runs train on everything
    tuned = grid.cells[0].with_chosen_values(grid.choices[0].values[1])
    assert tuned.config.local.learning_rate == 0.3


def test_a_row_can_be_left_out_of_tuning_and_a_set_key_is_not_tuned(experiment_file):
    path = experiment_file(('name = "FedAvg"', 'name = "FedAvg"\ntune = {}'), more=TUNE)
    assert {choice.row for choice in plan(path, profile=None, out=None).grid.choices} == {"DP-FedAvg"}
    assert plan(path, profile=None, out=None, settings=["local.learning_rate=0.2"]).grid.choices == ()


@pytest.mark.parametrize("profile", ["smoke", None])
def test_a_dry_run_lists_what_would_run_and_makes_nothing(experiment_file, capsys, tmp_path, profile):
    arguments = ["sweep", str(experiment_file()), "--dry-run", "--json", "--out", str(tmp_path / "out")]
    assert status([*arguments, *(["--profile", profile] if profile else [])]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [run["state"] for run in found["runs"]] == ["to run"] * (3 if profile else 6)
    assert found["note"] == ("one seed" if profile else "")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("profile", ["smoke", None])
def test_what_set_changes_is_in_the_note(experiment_file, profile):
    note = plan(experiment_file(), profile=profile, out=None, settings=["federation.rounds=3"]).note
    assert note == ("one seed; " if profile else "") + "changed by --set: federation.rounds=3"
