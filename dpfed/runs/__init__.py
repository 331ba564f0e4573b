"""Runs: their loop, folder, checkpoint, ledger book and summary, and privacy of custom training loops
(`client_level`)."""
