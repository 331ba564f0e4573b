"""Methods of federated learning: their stages, their properties, and the settings that each refuses.

`register` adds a method of your own: a function from a run's settings to its chain of stages, and further properties.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

from dpfed.config import own_code
from dpfed.errors import ConfigError
from dpfed.methods.catalogue import METHODS, most_bits
from dpfed.methods.specification import MethodSpecification

if TYPE_CHECKING:
    from dpfed.clients.task import Course
    from dpfed.methods.parts import TrainingParts
    from dpfed.methods.settings import Settings
    from dpfed.server.rules import ServerRule
    from dpfed.stages.chain import Stages

__all__ = ["register"]

MakesStages = Callable[["Settings"], "Stages"]


def register(
    name: str,
    *,
    scheme: str = "dense",
    what: str = "",
    paper: str = "one's own",
    unbiased: bool = False,
    bits: float | None = None,
    sparse: Literal["no", "yes"] = "no",
    privacy: Literal["never", "required", "optional"] = "optional",
    preset: Mapping[str, object] | None = None,
    masks: bool = False,
    course: Callable[[TrainingParts], Course] | None = None,
    server: Callable[[TrainingParts], ServerRule] | None = None,
) -> Callable[[MakesStages], MakesStages]:
    """Register the decorated function as the method `name` of this process, with presets NAME-DATASET.

    The function maps `dpfed.methods.settings.Settings` to `dpfed.stages.chain.Stages`.

    scheme: name in `dpfed.compress`, where a custom scheme is registered first; "dense" if the chain alone determines
        the content of an upload
    what: description of an upload, for `dpfed methods`; paper: source of the method
    unbiased: True if the decoded mean is unbiased without clipping
    bits: bits per parameter of an upload; by default the largest number of the scheme
    sparse: "yes" if method.keep or method.k must be given (`s.kept`)
    privacy: a table [privacy] is "optional", "required" or "never" allowed
    preset: tables that override those of the data set in its presets, such as {"method": {"keep": 0.4}}
    masks: True if clients train and send a mask over frozen weights, as in fedpm. The chain is then `s.coins(...)`, the
        noise under [privacy] is Bernoulli samples, and the method has the table [mask]
    course: makes local training from `dpfed.methods.parts.TrainingParts`; by default that of [local] and [mask]
    server: makes the server's rule from `dpfed.methods.parts.TrainingParts`; by default that of [server]

    Claim: a private run of the method is charged by the private stage of its chain, and is refused if the bound that
    this charge relies on does not hold (`dpfed.mechanisms.soundness`). Raises ConfigError for a name that is taken, or
    a scheme that does not exist.
    """

    def register_function(makes: MakesStages) -> MakesStages:
        if not callable(makes):
            raise ConfigError(
                f"method {name!r}: is {type(makes).__name__}; must be a function from settings to stages."
            )
        given: dict[str, Any] = {
            "name": name,
            "paper": paper,
            "unbiased": unbiased,
            "what": what or (makes.__doc__ or "one's own").strip().splitlines()[0].rstrip("."),
            "privacy": privacy,
            "presets": {name: preset or {}},
            "stages": makes,
            "course": course,
            "server": server,
        }
        if masks:
            made = replace(METHODS["fedpm"], keys=(), **given)
        else:
            made = MethodSpecification(
                nominal_bits_per_parameter=_bits_of_scheme(name, scheme) if bits is None else bits,
                linear=scheme == "dense",
                scheme=scheme,
                sparse=sparse,
                **given,
            )
        own_code.register_object("method", name, made, taken=METHODS)
        return makes

    return register_function


def _bits_of_scheme(name: str, scheme: str) -> float:
    from dpfed import compress

    if scheme not in compress.names():
        raise ConfigError(
            f"method {name!r} with scheme {scheme!r}: there is no such scheme. Register it before the method, or use "
            f"one of {', '.join(compress.names())}."
        )
    return most_bits(partial(compress.get, scheme))
