"""Runs: the loop, a run's folder, checkpoint, ledger book and summary; custom training loops (`client_level`)."""
