"""data.validation: samples that nobody trains on, scored beside the test half."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from dpfed import data
from dpfed.data.samples import public_samples, validation_samples
from dpfed.errors import ConfigError
from dpfed.runs import loop as federation
from dpfed.runs.experiment import build
from dpfed.seeds import Seeds


def rows(inputs):
    return {sample.tobytes() for sample in np.asarray(inputs)}


def test_no_client_holds_a_validation_sample(tiny_config):
    whole = data.load("digits")
    experiment = build(tiny_config("data.validation=200", "data.public=100"))
    held, training = rows(experiment.validation.inputs), rows(experiment.dataset.train_inputs)
    assert len(experiment.validation.labels) == 200
    assert len(experiment.dataset.train_labels) == len(whole.train_labels) - 200 - 100
    assert not held & training
    assert held <= rows(whole.train_inputs)
    assert experiment.method.clients.partition.sizes.sum() == len(experiment.dataset.train_labels)
    assert np.array_equal(experiment.dataset.test_labels, whole.test_labels)
    assert any("200 training samples are set aside for validation" in note for note in experiment.not_protected)


def test_samples_of_natural_clients_say_what_they_share(tiny_config):
    """Their clients are the unit of [privacy], and scores of each round are published without noise."""
    whole, config = data.load("digits"), tiny_config("data.validation=200", "data.public=100")
    owned = replace(whole, train_clients=np.arange(len(whole.train_labels)) % 7, natural_clients=7)
    for samples in (validation_samples, public_samples):
        for given, shared in ((whole, False), (owned, True)):
            note = samples(config, given, Seeds(root=0), torch.device("cpu"))[1].note
            assert ("nor is the information that they share with other samples" in note) == shared


def test_the_score_is_that_of_the_saved_model_on_those_samples(tiny_config, tmp_path):
    plain = ("method.name=fedavg", "data.validation=200", "model.hidden=[8]")
    experiment = build(tiny_config(*plain, without=["privacy"]))
    outcome = federation.run(experiment, tmp_path / "run")
    saved = load_file(tmp_path / "run" / "model.safetensors")
    first, second = [name for name in saved if name.endswith("weight")]
    hidden = experiment.validation.inputs.flatten(1) @ saved[first].T + saved[first.replace("weight", "bias")]
    logits = torch.relu(hidden) @ saved[second].T + saved[second.replace("weight", "bias")]
    accuracy = float((logits.argmax(dim=1) == experiment.validation.labels).double().mean())
    assert outcome.summary["validation_accuracy"] == pytest.approx(accuracy)
    assert outcome.metrics[-1]["validation_accuracy"] == pytest.approx(accuracy)
    assert outcome.summary["validation_accuracy"] != outcome.summary["test_accuracy"]


def test_without_the_key_nothing_is_set_aside_or_said(tiny_config, tmp_path):
    outcome = federation.run(build(tiny_config()), tmp_path / "run")
    assert outcome.summary["validation_accuracy"] is None
    assert "validation_accuracy" not in outcome.metrics[-1]
    assert "validation" not in (tmp_path / "run" / "config.toml").read_text()


@pytest.mark.parametrize("count", [1438, 5000])
def test_some_samples_must_be_left(tiny_config, count):
    with pytest.raises(ConfigError, match=rf"data\.validation={count}: 'digits' has 1438 training samples"):
        build(tiny_config(f"data.validation={count}"))
