"""Runs: the loop, a run's folder, checkpoint, ledger book and summary; loops of your own (`client_level`)."""
