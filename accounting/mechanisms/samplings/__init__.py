"""Samplers, one file a family: a distribution, which a ledger states and which draws, and the options of a plan."""

# isort: off
from accounting.mechanisms.samplings import independent, allocation, separation, public_orders, records

__all__ = ["allocation", "independent", "public_orders", "records", "separation"]
