"""A run: its loop, its folder, its ledger and its summary."""
