"""Objects of the libraries datasets, flwr-datasets, transformers and torchvision; skipped where one is missing."""

import numpy as np
import pytest
import torch

import dpfed
from dpfed.data import from_clients

SETTINGS = {"federation.rounds": 2, "federation.cohort": 2, "local.batch_size": 4, "local.epochs": 1}
DRAW = np.random.default_rng(0)


@pytest.fixture
def images():
    """A `datasets.Dataset` with a column of images, classes and clients, as a Parquet file of a hub has them."""
    datasets = pytest.importorskip("datasets", reason="datasets is not installed: pip install datasets")
    pixels = [DRAW.integers(0, 255, (8, 8, 3), dtype=np.uint8) for _ in range(40)]
    features = datasets.Features(
        {"image": datasets.Image(), "y": datasets.ClassLabel(names=["cat", "dog"]), "who": datasets.Value("string")}
    )
    columns = {"image": pixels, "y": [i % 2 for i in range(40)], "who": [f"u{i // 10}" for i in range(40)]}
    return pixels, datasets.Dataset.from_dict(columns, features=features)


def test_a_data_set_with_images_and_clients(images, tmp_path):
    pixels, whole = images
    made = from_clients(whole, whole, classes=None, client="who", inputs=["image"], label="y")
    assert (made.classes, made.natural_clients, made.input_shape) == (2, 4, (3, 8, 8))
    np.testing.assert_allclose(made.train_inputs[5], pixels[5].transpose(2, 0, 1) / 255, rtol=1e-6)
    part = whole.select(range(10)).filter(lambda row: row["y"] == 0)
    few = from_clients([part, whole.select([1, 2])], whole, classes=2, inputs=["image"], label="y")
    np.testing.assert_array_equal(few.train_labels, [0, 0, 0, 0, 0, 1, 0])
    network = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(192, 2))
    done = dpfed.run("dp-fedavg-digits", SETTINGS, data=made, model=network, out=tmp_path / "run")
    assert done.summary["clients"] == 4 or done.guarantee.epsilon > 0


@pytest.mark.filterwarnings("ignore")
def test_partitioners_of_flower_datasets(images):
    kinds = pytest.importorskip("flwr_datasets.partitioner", reason="flwr-datasets is not installed")
    _, whole = images
    for partitioner in (kinds.NaturalIdPartitioner(partition_by="who"), kinds.IidPartitioner(num_partitions=5)):
        partitioner.dataset = whole
        made = from_clients(partitioner, whole, classes=2, inputs=["image"], label="y")
        assert made.natural_clients == partitioner.num_partitions
        sizes = [len(partitioner.load_partition(i)) for i in range(partitioner.num_partitions)]
        assert np.bincount(made.train_clients).tolist() == sizes


def tokens(datasets):
    """Tokenised texts of 4 clients, of the types that tokenisers write."""
    features = datasets.Features(
        {
            "input_ids": datasets.Sequence(datasets.Value("int32")),
            "attention_mask": datasets.Sequence(datasets.Value("int8")),
            "label": datasets.ClassLabel(names=["no", "yes"]),
            "who": datasets.Value("string"),
        }
    )
    ids = DRAW.integers(1, 30, (24, 7))
    mask = (np.arange(7) < DRAW.integers(3, 8, (24, 1))).astype(int)
    columns = {
        "input_ids": (ids * mask).tolist(),
        "attention_mask": mask.tolist(),
        "label": [int(one) for one in ids[:, 0] > 15],
        "who": [f"u{i // 6}" for i in range(24)],
    }
    return datasets.Dataset.from_dict(columns, features=features)


def network(kind):
    transformers = pytest.importorskip("transformers", reason="transformers is not installed: make test-adapters")
    torch.manual_seed(0)
    sizes = {"vocab_size": 30, "pad_token_id": 0, "num_labels": 2}
    if kind == "bert":
        small = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
        still = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0, "attn_implementation": "eager"}
        config = transformers.BertConfig(**sizes, **small, **still, max_position_embeddings=8)
        return transformers.BertForSequenceClassification(config)
    still = {"dropout": 0.0, "attention_dropout": 0.0, "seq_classif_dropout": 0.0, "attn_implementation": "eager"}
    config = transformers.DistilBertConfig(
        **sizes, **still, dim=16, n_layers=1, n_heads=2, hidden_dim=16, max_position_embeddings=8
    )
    return transformers.DistilBertForSequenceClassification(config)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", ["bert", "distilbert"])
def test_a_network_of_transformers_on_tokenised_texts(kind, tmp_path):
    """Dictionaries (input_ids, attention_mask) of a data set with a column of clients; the saved names are its own."""
    datasets = pytest.importorskip("datasets", reason="datasets is not installed: pip install datasets")
    whole, model = tokens(datasets), network(kind)
    made = from_clients(whole, whole, classes=None, client="who", inputs=["input_ids", "attention_mask"], label="label")
    samples = whole.remove_columns("who").with_format("numpy")
    by_sample = from_clients([samples.select(range(6 * i, 6 * i + 6)) for i in range(4)], samples, classes=2)
    np.testing.assert_array_equal(made.train_inputs, by_sample.train_inputs)
    done = dpfed.run("dp-fedavg-digits", SETTINGS, data=made, model=model, out=tmp_path / "run")
    from safetensors.torch import load_file

    state = load_file(done.folder / "model.safetensors")
    model.load_state_dict(state)
    model.eval()
    with torch.no_grad():
        out = model(**{name: torch.tensor(whole[name]) for name in ("input_ids", "attention_mask")}).logits
    right = float((out.argmax(1) == torch.tensor(whole["label"])).float().mean())
    assert done.summary["test_accuracy"] == pytest.approx(right)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("library", ["torchvision", "timm", "transformers"])
def test_networks_of_others_go_in_or_are_refused_as_the_guide_says(library, monkeypatch):
    """Each of thirty is trained in one private round or refused before it; the guide's table names its outcome."""
    import networks_of_others as others

    pytest.importorskip(library, reason="is not installed: make test-adapters", exc_type=(ImportError, RuntimeError))
    monkeypatch.setattr("dpfed.api.run.write_report", lambda outcome: None)
    text = others.PAGE.read_text()
    rows = text[text.index(others.BEGIN) : text.index(others.END)].splitlines()
    listed = dict(others.LIBRARIES[library]())
    for name, make in listed.items():
        said = others.outcome_of_network(library, name, make)
        assert said.startswith(("taken", "refused: ")), (name, said)
        (row,) = [one for one in rows if one.startswith(f"| {said} |")]
        assert others.shown(name) in row, (name, row)
    assert len(listed) >= 8
