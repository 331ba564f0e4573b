"""Accounts of compositions: privacy loss distributions, Renyi curves, running accounts, conversion to epsilon."""
