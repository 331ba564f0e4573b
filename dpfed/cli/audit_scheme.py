"""`dpfed audit scheme`: test a compressor against its claims."""

from __future__ import annotations

from dpfed.cli.output import Flag, Load, Settings, console, print_json, training_extra
from dpfed.config.own_code import load_files
from dpfed.errors import ConfigError
from dpfed.methods.catalogue import method_specification


def scheme(
    name: str,
    *,
    options: Settings = None,
    load: Load = None,
    json: Flag = False,
) -> int:
    """Test a compressor: encoding and decoding, bounds, independence between clients, seeds, edge cases and bias.

    A correct compressor fails with probability at most 1e-6. Exit status 1 if it fails.

    Example: dpfed audit scheme qsgd --set levels=4

    Parameters
    ----------
    name
        A compression scheme, or a method that has one (`dpfed methods`).
    options
        option=value of the scheme; may be given again.
    load
        A Python file of your own, which registers the scheme (docs/own-methods.md); may be given again.
    json
        The findings as one JSON document on standard output.
    """
    with training_extra("dpfed audit"):
        from dpfed import compress
        from dpfed.config.tables import override
    load_files(load or [])
    given = override({}, [f"options.{option}" for option in options or []]).get("options", {})
    chosen = name if name in compress.names() else method_specification(name).scheme
    if chosen is None or chosen in _BERNOULLI_SCHEMES:
        raise ConfigError(
            f"{name}: sends Bernoulli samples, which are not tested here. Run `dpfed audit upload {name}`."
        )
    found = compress.check(compress.get(chosen, **given))
    if json:
        print_json(found.to_dict())
    else:
        console().print(str(found), highlight=False)
    return 0 if found.passed else 1


_BERNOULLI_SCHEMES = ("fedpm", "fedmask")
