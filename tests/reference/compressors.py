"""Every compressor in the settings that tests use, and the exact error of those that have a formula."""

import torch

import dpfed.compress

SETTINGS = {
    "dense": ("dense", {}),
    "dense half": ("dense", {"bits": 16}),
    "topk": ("topk", {"keep": 0.1}),
    "topk k": ("topk", {"k": 1}),
    "randk": ("randk", {"keep": 0.1}),
    "randk unscaled": ("randk", {"k": 1, "scaled": False}),
    "shared-randk": ("shared-randk", {"keep": 0.1}),
    "shared-topk": ("shared-topk", {"indices": torch.tensor([0])}),
    "signsgd": ("signsgd", {}),
    "signsgd l2 majority": ("signsgd", {"scale": "l2", "majority": True}),
    "stochastic-sign": ("stochastic-sign", {}),
    "stochastic-sign l2": ("stochastic-sign", {"bound": "l2"}),
    "stochastic-sign constant": ("stochastic-sign", {"bound": 6.0}),
    "terngrad": ("terngrad", {}),
    "terngrad clipped": ("terngrad", {"clip": 2.5}),
    "qsgd": ("qsgd", {}),
    "qsgd linf": ("qsgd", {"levels": 7, "bucket": 3, "norm": "linf"}),
    "qsgd whole": ("qsgd", {"levels": 1, "bucket": None}),
    "qsgd fine": ("qsgd", {"levels": 300}),
    "fedsparsify": ("fedsparsify", {}),
    "drive": ("drive", {}),
    "drive small blocks": ("drive", {"scale": "min-mse", "block": 1024}),
    "eden 1": ("eden", {}),
    "eden 3": ("eden", {"bits": 3}),
    "eden half": ("eden", {"bits": 0.5}),
    "fedmrn": ("fedmrn", {"alpha": 1.0}),
    "fedmrns": ("fedmrns", {"alpha": 1.0}),
    "fedmrns shared": ("fedmrns", {"alpha": 1.0, "noise": "bernoulli", "shared_seed": 5}),
    "fedscalar": ("fedscalar", {}),
    "fedscalar shared": ("fedscalar", {"projections": 3, "vectors": "gaussian", "shared_seed": 5}),
}


def make(setting):
    """The scheme of a setting."""
    name, options = SETTINGS[setting]
    return dpfed.compress.get(name, **options)


def exact_error(scheme, x):
    """E ||decode - x||² of one vector [d] in float64, over the scheme's own randomness."""
    x = x.double()
    d, energy, largest = len(x), x.square().sum(), x.abs().amax()
    match scheme.name:
        case "dense":
            return energy * 0
        case "topk" | "fedsparsify":
            kept = scheme.layout(d)["values"].count
            return x.square().sort().values[: d - kept].sum()
        case "randk" | "shared-randk":
            kept = scheme.layout(d)["values"].count
            return energy * (d / kept - 1) if scheme.scaled else energy * (1 - kept / d)
        case "signsgd":
            scale = x.abs().mean() if scheme.scale == "l1" else (energy / d).sqrt()
            return (scale - x.abs()).square().sum()
        case "stochastic-sign":
            bound = {"linf": largest, "l2": energy.sqrt()}.get(scheme.bound, scheme.bound)
            return d * bound**2 - energy
        case "terngrad":
            assert scheme.clip is None
            return largest * x.abs().sum() - energy
        case "qsgd":
            error = x.new_zeros(())
            for part in x.split(scheme.bucket or d):
                norm = part.norm() if scheme.norm == "l2" else part.abs().amax()
                up = (scheme.levels * part.abs() / norm).frac() if norm else part
                error += (norm / scheme.levels) ** 2 * (up * (1 - up)).sum()
            return error
    raise ValueError(scheme.name)


def relative_error(estimate, x):
    """||estimate - x||² / ||x||², of all rows together."""
    return float((estimate - x).square().sum() / x.square().sum())


def mean_error(scheme, x, seed=1):
    """The relative error of the mean that a server decodes."""
    return relative_error(scheme.mean(scheme.encode(x, seed=seed)), x.mean(dim=0))
