"""Accounts of compositions: privacy loss distributions, Renyi curves, running accounts, and the conversion to epsilon."""
