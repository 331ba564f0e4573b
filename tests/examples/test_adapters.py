"""Adapters of a language model: what a run saves is what it measured. Needs transformers and peft, and no data."""

import json
import random
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from refusals import refused
from safetensors.torch import load_file, save_file

pytest.importorskip("peft", reason="peft is not installed: make test-adapters")
pytest.importorskip("transformers", reason="transformers is not installed: make test-adapters")
pytestmark = [
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore::UserWarning:peft.*"),
]

EXAMPLE = Path(__file__).parents[2] / "examples" / "adapters"
CLIENTS, SPEAKS = 6, 40
KINDS = ("gpt2-lora", "gpt2-ffa-lora")


def text(roles):
    """Everybody says something of everybody else, in lines of five words."""
    draw = random.Random(0)
    words = ("the", "king", "is", "good", "we", "go", "home", "now", "and", "then")
    speeches = [f"R{role}:\n" + " ".join(draw.choices(words, k=5)) for _ in range(SPEAKS) for role in range(roles)]
    return "\n\n".join(speeches) + "\n"


def dpfed_run(kind, rounds, *more):
    """Of all clients, its folder named as its network."""
    words = ["run", EXAMPLE / "lora.toml", "--load", EXAMPLE / "language_model.py", "--out", kind, *more]
    settings = (f"federation.clients={CLIENTS}", f"federation.cohort={CLIENTS}", rounds, "privacy.noise_multiplier=1.5")
    for one in (*settings, f"model.name={kind}"):
        words += ["--set", one]
    return subprocess.run([sys.executable, "-m", "dpfed", *words], capture_output=True, text=True)


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A folder with pretrained weights and, by network, a run of two private rounds; and the example's modules."""
    folder = tmp_path_factory.mktemp("adapters")
    (folder / "shakespeare").mkdir()
    (folder / "shakespeare" / "input.txt").write_text(text(2 * CLIENTS))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DPFED_DATA_DIR", str(folder))
        patch.chdir(folder)
        patch.syspath_prepend(str(EXAMPLE))
        subprocess.run([sys.executable, EXAMPLE / "pretrain.py", "30"], check=True, capture_output=True)
        for kind in KINDS:
            done = dpfed_run(kind, "federation.rounds=2")
            assert done.returncode == 0, done.stderr
        import saved_adapter

        yield folder, saved_adapter


@pytest.mark.parametrize("kind", KINDS)
def test_a_saved_adapter_has_the_loss_that_the_run_states(trained, kind):
    folder, example = trained
    without, found = example.losses(example.save_adapter(folder / kind))
    assert example.fault(folder / kind, without, found) is None
    stated = json.loads((folder / kind / "summary.json").read_text())
    assert found == pytest.approx(stated["test_loss"], abs=1e-4)
    assert abs(found - without) > 1e-3
    assert stated["epsilon"] <= 8.0


@pytest.mark.parametrize("kind", KINDS)
def test_only_the_adapter_is_sent(trained, kind):
    """4,096 numbers of 33,152, or the 2,304 of B; the file of the run has all the others as well."""
    folder, _ = trained
    summary = json.loads((folder / kind / "summary.json").read_text())
    trained_here = {"gpt2-lora": 4096, "gpt2-ffa-lora": 2304}[kind]
    assert (summary["parameters"], summary["fixed_parameters"]) == (trained_here, 33152 - trained_here)
    saved = load_file(folder / kind / "model.safetensors")
    assert sum(tensor.numel() for tensor in saved.values()) == 33152
    assert summary["uplink_bytes_per_client_round"] < 4 * trained_here + 100


def names_that_nobody_knows(adapter):
    return {f"module.{name}": tensor for name, tensor in adapter.items()}


def zeros(adapter):
    return {name: torch.zeros_like(tensor) for name, tensor in adapter.items()}


def another_start(adapter):
    draw = torch.Generator().manual_seed(1)
    return {
        name: torch.randn(tensor.shape, generator=draw) / 8 if "lora_A" in name else tensor
        for name, tensor in adapter.items()
    }


@pytest.mark.parametrize("plant", [names_that_nobody_knows, zeros, another_start])
def test_a_planted_fault_is_found(trained, plant):
    """peft loads an adapter whose names it does not know without an error; so a file alone says nothing."""
    folder, example = trained
    adapter = example.save_adapter(folder / "gpt2-ffa-lora")
    file = adapter / "adapter_model.safetensors"
    save_file(plant(load_file(file)), file)
    without, found = example.losses(adapter)
    assert "without it" in example.fault(folder / "gpt2-ffa-lora", without, found)


def test_an_adapter_that_changes_nothing_is_found(trained):
    """A run whose adapter stayed at its start states the loss of the network without it, which is no fault of files."""
    folder, example = trained
    stated = json.loads((folder / "gpt2-lora" / "summary.json").read_text())["test_loss"]
    assert "changes nothing" in example.fault(folder / "gpt2-lora", stated, stated)


def test_a_model_of_another_network_is_no_adapter(trained, tmp_path):
    _, example = trained
    save_file({"somewhere.weight": torch.zeros(2)}, tmp_path / "model.safetensors")
    refused(SystemExit, "is no adapter of this network", example.save_adapter, tmp_path)


@pytest.mark.slow
def test_a_run_goes_on_with_the_network_that_it_began_with_only(trained):
    """Frozen weights are in no update, but a run is bound to them."""
    folder, _ = trained
    file = folder / "public.safetensors"
    before = load_file(file)
    save_file({name: tensor + 0.01 for name, tensor in before.items()}, file)
    done = dpfed_run("gpt2-lora", "federation.rounds=3", "--resume")
    save_file(before, file)
    assert done.returncode != 0
    assert "the model that it starts from" in done.stderr


def test_without_pretrained_weights_or_text_the_error_says_what_to_do(trained, tmp_path, monkeypatch):
    from language_model import pretrained, roles

    from dpfed.errors import ConfigError, DataError

    monkeypatch.chdir(tmp_path)
    refused(ConfigError, r"Run pretrain\.py", pretrained)
    monkeypatch.delenv("DPFED_DATA_DIR")
    refused(DataError, "DPFED_DATA_DIR", roles, 0)
