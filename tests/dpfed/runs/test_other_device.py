"""Every method on a device that is not the CPU: no operation mixes devices, and the model is the CPU's."""

import multiprocessing
from concurrent.futures import ProcessPoolExecutor

import pytest
import torch
from reference import other_device_runs
from reference.other_device import register
from safetensors.torch import load_file

TINY = ("federation.rounds=2", "federation.clients=40", "federation.cohort=10", "local.epochs=1")
SECURE_SUM = (
    "privacy.noise=skellam", "privacy.placement=clients", "federation.sampling=fixed", "aggregation.kind=protocol",
)  # fmt: skip
RUNS = {
    "fedavg": ("fedavg",),
    "dp-fedavg": ("dp-fedavg",),
    "canaries": ("dp-fedavg", "audit.canaries=4"),
    "adaptive clipping": ("dp-fedavg", "privacy.adaptive.quantile=0.5"),
    "discrete noise": ("dp-fedavg", "privacy.noise=discrete-gaussian"),
    "secure sum": ("dp-fedavg", *SECURE_SUM),
    "one after the other": ("dp-fedavg", "local.strategy=loop"),
    "images one after the other": ("dp-fedavg", "model.name=strided-cnn", "local.strategy=loop"),
    "masks one after the other": ("fedpm", "local.strategy=loop"),
    "masked noise one after the other": ("fedmrn", "local.strategy=loop"),
    "votes to prune": ("fedsparsify", "method.purge=clients", "local.strategy=loop"),
    "what clients remember": ("eden", "method.error_feedback=true"),
    "private records": (
        "fedavg", "local.record.clip_norm=1.0", "local.record.noise_multiplier=1.0", "local.batch_size=5",
    ),
    "private uploads": ("drive", "privacy.clip_norm=1.0", "privacy.noise_multiplier=1.0", "privacy.release=uploads"),
    **{
        name: (name,)
        for name in (
            "fed-smp-randk", "fed-smp-topk", "fedavg-topk", "fedavg-randk", "fedpm", "fedpm-private", "fedmask",
            "fedmrn", "fedmrns", "fedscalar", "signsgd", "stochastic-sign", "terngrad", "qsgd", "drive", "eden",
            "fedsparsify",
        )
    },
}  # fmt: skip


@pytest.fixture(scope="module")
def elsewhere():
    """A process that knows the other device, with one thread: sums have one order, and coins fall alike."""
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn"), initializer=register_alone) as pool:
        yield pool


def register_alone():
    torch.set_num_threads(1)
    register()


@pytest.mark.parametrize("case", RUNS)
@pytest.mark.slow
def test_a_run_elsewhere_is_the_cpus(tmp_path, elsewhere, case):
    method, *settings = RUNS[case]
    arguments = (f"{method}-digits", [*TINY, *settings], tmp_path / "here", tmp_path / "there")
    here, there = elsewhere.submit(other_device_runs.both, *arguments).result(timeout=120)
    assert there == pytest.approx(here, abs=0.02)
    models = [load_file(tmp_path / name / "model.safetensors") for name in ("here", "there")]
    for name, weights in models[0].items():
        # Sums have another order where data lie otherwise in memory, and now and then a coin falls on its other side.
        far = ~torch.isclose(models[1][name], weights, rtol=1e-4, atol=1e-6)
        assert far.double().mean() < 0.01, name


@pytest.mark.slow
def test_what_mixes_devices_is_found(elsewhere):
    assert elsewhere.submit(other_device_runs.complaints).result(timeout=120) == {
        "a number": [2.0, 2.0, 2.0],
        "an index": "far",
        "a sum": "aten::add: tensors on 'far' together with some on the cpu of shapes [(3,)]",
        "index_copy": "aten::index_copy_: tensors on 'far' together with some on the cpu of shapes [(1,)]",
        "numpy": "refused",
    }
