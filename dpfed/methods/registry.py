"""A method of one's own: a function from a run's settings to its chain of stages, and what stages cannot say."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

from dpfed.config import registered
from dpfed.errors import ConfigError
from dpfed.methods.catalogue import METHODS, most_bits
from dpfed.methods.facts import COMPRESSED, DECODED, NOISED_SUM, NOISED_UPLOADS, SHARES, SPARSE, MethodFacts

if TYPE_CHECKING:
    from dpfed.methods.settings import Settings
    from dpfed.stages.chain import Stages

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
    preset: Mapping[str, Any] | None = None,
) -> Callable[[MakesStages], MakesStages]:
    """A decorator: the function, from `dpfed.methods.settings.Settings` to `dpfed.stages.chain.Stages`, is from now on
    the method `name` of this process, and presets NAME-DATASET are there.

    scheme:   of `dpfed.compress`, one's own is registered first; "dense" where the chain alone decides what is sent
    what:     what a client sends, for `dpfed methods`; paper: where it is from
    unbiased: without clipping; bits: a parameter, by default the most that the scheme takes
    sparse:   whether method.keep or method.k must be given (`s.kept`)
    privacy:  whether a [privacy] table may, must or cannot be there
    preset:   tables of its presets, beside those of the data set: {"method": {"keep": 0.4}}

    Claim: a private run of it is charged by the stage of its chain that makes it private, and is refused where the
    bound of that charge does not hold (`dpfed.mechanisms.soundness`). ConfigError for a name that is taken or a scheme
    that is not there.
    """

    def known(makes: MakesStages) -> MakesStages:
        if not callable(makes):
            raise ConfigError(
                f"method {name!r}: is {type(makes).__name__}; must be a function from settings to stages."
            )
        facts = MethodFacts(
            name=name,
            paper=paper,
            local_training="sgd",
            unbiased=unbiased,
            nominal_bits_per_parameter=_most_bits(name, scheme) if bits is None else bits,
            linear=scheme == "dense",
            private_with=() if privacy == "never" else _ways(scheme),
            what=what or (makes.__doc__ or "one's own").strip().splitlines()[0].rstrip("."),
            scheme=scheme,
            privacy=privacy,
            sparse=sparse,
            stages=makes,
            takes=(*COMPRESSED, *(SPARSE if sparse == "yes" else ())),
            presets={name: preset or {}},
        )
        registered.add("method", name, facts, taken=METHODS)
        return makes

    return known


def _ways(scheme: str) -> tuple[str, ...]:
    return (NOISED_SUM, SHARES, NOISED_UPLOADS) if scheme == "dense" else (DECODED, NOISED_UPLOADS)


def _most_bits(name: str, scheme: str) -> float:
    from dpfed import compress

    if scheme not in compress.names():
        raise ConfigError(
            f"method {name!r} with scheme {scheme!r}: there is none. Register it before the method, or use one of "
            f"{', '.join(compress.names())}."
        )
    return most_bits(partial(compress.get, scheme))
