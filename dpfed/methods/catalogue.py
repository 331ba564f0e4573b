"""All methods by name, the registration of user-defined ones, presets, and the presets' measured results.

A preset is METHOD-DATASET, for custom methods and schemes, too. The data set's tables are overridden by the method's,
then by the data set's [adjust.METHOD].
"""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Mapping
from copy import deepcopy
from dataclasses import dataclass, replace
from functools import cache, partial
from importlib.resources import files
from typing import TYPE_CHECKING, Any, Literal

from dpfed.config import own_code
from dpfed.errors import ConfigError, did_you_mean
from dpfed.methods import fed_avg, fedmrn, fedpm, fedsparsify, quantisers
from dpfed.methods.specification import COMPRESSED, SPARSE, MethodSpecification

if TYPE_CHECKING:
    from dpfed.clients.task import Course
    from dpfed.methods.parts import ServerParts, TrainingParts
    from dpfed.methods.settings import Settings
    from dpfed.server.rules import ServerRule
    from dpfed.stages.chain import Stages

FAMILIES = (fed_avg, fedpm, fedmrn, quantisers, fedsparsify)

METHODS: dict[str, MethodSpecification] = {one.name: one for family in FAMILIES for one in family.METHODS}
"""The built-in methods."""

MakesStages = Callable[["Settings"], "Stages"]

_DIMENSION = 1 << 16


def all_methods() -> dict[str, MethodSpecification]:
    """Return the built-in methods, custom methods, and one method for each custom scheme.

    The method of a custom scheme has the scheme's name, and compresses the whole update by the scheme.
    """
    return {**METHODS, **_scheme_methods(), **own_code.objects_of_kind("method")}


def method_specification(name: str) -> MethodSpecification:
    """Return the method of this name; raises ConfigError, which suggests a similar name, if it is unknown."""
    known = METHODS if name in METHODS else all_methods()
    if name not in known:
        raise ConfigError(
            f"method.name={name!r}: known are {', '.join(known)}.{did_you_mean(name, known)} Load "
            "the file of a method of your own by --load FILE.py."
        )
    return known[name]


federated_method = method_specification  # its name where the functions of a method are called


def _scheme_methods() -> dict[str, MethodSpecification]:
    schemes, methods = own_code.objects_of_kind("scheme"), own_code.objects_of_kind("method")
    taken = [name for name in schemes if name in METHODS]
    if taken:
        raise ConfigError(f"scheme {taken[0]!r}: is the name of an existing method. Choose another name.")
    return {name: _scheme_method(name, made) for name, made in schemes.items() if name not in methods}


def _scheme_method(name: str, made: Any) -> MethodSpecification:
    return MethodSpecification(
        name=name,
        scheme=name,
        paper="one's own",
        nominal_bits_per_parameter=_most_bits(made),
        unbiased=getattr(made, "unbiased", False) is True,
        what=(made.__doc__ or "user-defined scheme").strip().splitlines()[0].rstrip("."),
    )


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
    masks: bool = False,
    course: Callable[[TrainingParts], Course] | None = None,
    server: Callable[[ServerParts], ServerRule] | None = None,
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
    server: makes the server's rule from `dpfed.methods.parts.ServerParts`; by default that of [server]

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
            **({} if course is None else {"course": course}),
            **({} if server is None else {"server": server}),
        }
        if masks:
            made = replace(METHODS["fedpm"], takes=(*SPARSE, "mask"), **given)
        else:
            made = MethodSpecification(
                nominal_bits_per_parameter=_bits_of_scheme(name, scheme) if bits is None else bits,
                linear=scheme == "dense",
                scheme=scheme,
                sparse=sparse,
                takes=(*COMPRESSED, *SPARSE) if sparse == "yes" else COMPRESSED,
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
    return _most_bits(partial(compress.get, scheme))


def _most_bits(made: Callable[[], Any]) -> float:
    """Return the largest number of bits per parameter of the scheme that `made` returns, without headers.

    Returns 0 if the scheme has options without a default.
    """
    try:
        layout = made().layout(_DIMENSION)
    except (ConfigError, TypeError):
        return 0.0
    return float(8 * sum(part.most_bytes for part in layout.values()) / _DIMENSION)


_DATA = files("dpfed.config") / "data_presets"


def preset_names() -> list[str]:
    """Return the names of all presets."""
    return [f"{method}-{data}" for data in data_sets() for method in sorted(tables_of_methods())]


def preset_tables(name: str) -> dict[str, Any]:
    """Return the tables of a preset, not validated; raises ConfigError, which suggests a similar name, if it is
    unknown."""
    for data in data_sets():
        method = name.removesuffix(f"-{data}")
        if method != name and method in tables_of_methods():
            below = tomllib.loads((_DATA / f"{data}.toml").read_text(encoding="utf-8"))
            adjusted = below.pop("adjust", {}).get(method, {})
            return _merge_tables(_merge_tables(below, tables_of_methods()[method]), adjusted)
    named = any(word in name for data in data_sets() for word in data.split("-") if not word.isdigit())
    hint = did_you_mean(name, [one for one in preset_names() if named or one.endswith("-digits")])
    raise ConfigError(f"{name}: neither a file nor a preset. `dpfed run --list` names the presets.{hint}")


def tables_of_methods() -> dict[str, dict[str, Any]]:
    """Return the tables that methods set, by the preset's method part; `privacy = False` removes the data set's
    [privacy]."""
    found = {}
    for method in all_methods().values():
        for name, given in (method.presets or {method.name: {}}).items():
            public = {} if method.privacy == "required" else {"privacy": False}
            found[name] = {**public, **given, "method": {"name": method.name, **given.get("method", {})}}
    return found


def data_sets() -> list[str]:
    """Return the names of the data sets that have presets."""
    return sorted(entry.name.removesuffix(".toml") for entry in _DATA.iterdir() if entry.name.endswith(".toml"))


def _merge_tables(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """Return `below` overridden by `above`, key by key; the value False in `above` removes the entry of `below`."""
    merged = deepcopy(dict(below))
    for key, value in above.items():
        if value is False:
            merged.pop(key, None)
        elif isinstance(value, Mapping):
            merged[key] = _merge_tables(merged.get(key, {}), value)
        else:
            merged[key] = value
    return merged


@dataclass(frozen=True, kw_only=True)
class ExpectedResults:
    """Measured results of one run of a preset.

    accuracy: test accuracy of the last round; epsilon: None if the preset is not private
    seconds: on two CPU cores; bits_per_parameter: bits of an upload, divided by the number of parameters
    """

    accuracy: float
    seconds: float
    bits_per_parameter: float
    epsilon: float | None = None


@cache
def expected_results() -> dict[str, ExpectedResults]:
    """Return the results of the measured presets by the preset's name, from the file that `benchmarks/presets.py`
    writes."""
    tables = tomllib.loads((files("dpfed.config") / "expected.toml").read_text(encoding="utf-8"))
    return {name: ExpectedResults(**table) for name, table in tables.items()}
