"""Accounts of compositions: loss laws, Renyi curves, running accounts, and the conversion to epsilon."""
