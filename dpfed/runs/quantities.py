"""Quantities of summary.json that tables can show: label, unit, and number of digits."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

from accounting.rounding import downwards, upwards
from dpfed.errors import ConfigError, did_you_mean

SAFELY: Mapping[str, Callable[[float], str]] = {
    "epsilon": upwards,
    "server_epsilon": upwards,
    "project_epsilon": upwards,
    "delta": upwards,
    "noise_multiplier": upwards,
    "lower_bound": downwards,
    "clip_norm": downwards,
}
"""Rounding functions of keys of summary.json that are rounded in the safe direction; other keys are rounded to
nearest."""


@dataclass(frozen=True, kw_only=True)
class Quantity:
    """A quantity in tables: `scale` times the value of a key of summary.json, in `unit`, with `digits` decimals.

    `accounting.rounding` chooses the digits of guarantees (`SAFELY`).

    over_seeds: statistic over runs with different seeds; for upper bounds the largest, because their mean is no bound
    """

    key: str
    label: str
    unit: str = ""
    scale: float = 1.0
    digits: int = 2
    over_seeds: Literal["mean", "largest", "smallest"] = "mean"

    @property
    def heading(self) -> str:
        """Heading of a table's column: the label with its unit."""
        return f"{self.label}, {self.unit}" if self.unit else self.label

    def printed(self, value: float, digits: int | None = None) -> str:
        """Return a value in `unit` as text; `digits` overrides the usual number of decimals."""
        if self.key in SAFELY:
            return SAFELY[self.key](value)
        return f"{value:,.{self.digits if digits is None else digits}f}"

    def difference(self, value: float, digits: int | None = None) -> str:
        """Return the difference of two values as text with its sign, rounded like a value; without a sign if it
        rounds to zero."""
        shown = self.printed(value, digits)
        if not float(shown.replace(",", "")):
            return shown.removeprefix("-")
        return shown if value < 0 else f"+{shown}"


def _percent_quantity(key: str, label: str) -> Quantity:
    return Quantity(key=key, label=label, unit="%", scale=100.0)


QUANTITIES: dict[str, Quantity] = {
    one.key: one
    for one in (
        _percent_quantity("test_accuracy", "test accuracy, last round"),
        _percent_quantity("best_test_accuracy", "test accuracy, best over rounds"),
        _percent_quantity("validation_accuracy", "validation accuracy, last round"),
        *(
            Quantity(key=f"{half}_{key}", label=f"{half} {key}, last round", digits=4)
            for half in ("test", "validation")
            for key in ("loss", "mae", "rmse", "r2")
        ),
        Quantity(key="epsilon", label="epsilon", digits=4, over_seeds="largest"),
        Quantity(key="lower_bound", label="epsilon at least", digits=4, over_seeds="smallest"),
        Quantity(key="server_epsilon", label="epsilon against the server", digits=4, over_seeds="largest"),
        Quantity(
            key="hostile_clients_epsilon",
            label="epsilon whatever clients send",
            digits=4,
            over_seeds="largest",
        ),
        Quantity(key="delta", label="delta", digits=8, over_seeds="largest"),
        Quantity(key="noise_multiplier", label="noise multiplier", digits=4),
        Quantity(key="clip_norm", label="clip norm", digits=4),
        Quantity(key="rounds", label="rounds", digits=0),
        Quantity(key="parameters", label="parameters", digits=0),
        Quantity(key="uplink_bits_per_parameter", label="uplink", unit="bits a parameter", digits=4),
        Quantity(
            key="mask_entropy_bits_per_parameter",
            label="uplink by the entropy of a mask's ones (FedPM's measure)",
            unit="bits a parameter",
            digits=4,
        ),
        Quantity(key="model_bits_per_parameter", label="stored model", unit="bits a parameter", digits=4),
        Quantity(key="uplink_bytes_per_client_round", label="uplink a client and round", unit="bytes", digits=0),
        Quantity(key="downlink_bytes_per_client_round", label="downlink a client and round", unit="bytes", digits=0),
        Quantity(key="secure_sum_bytes_per_client_round", label="of it for the secure sum", unit="bytes", digits=0),
        Quantity(key="uplink_megabytes_total", label="uplink of all clients", unit="MB"),
        Quantity(key="seconds", label="time", unit="s", digits=1),
    )
}


def quantity_of_key(key: str, *, where: str) -> Quantity:
    """Return the quantity with this key. Raises ConfigError for an unknown key; its message begins with `where`."""
    if key not in QUANTITIES:
        hint = did_you_mean(key, QUANTITIES)
        raise ConfigError(f"{where}: quantity {key!r} is none of {', '.join(QUANTITIES)}.{hint}")
    return QUANTITIES[key]
