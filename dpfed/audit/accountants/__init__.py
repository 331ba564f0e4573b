"""Anybody's accountant against proven bounds: `settings`, `proven` bounds of each, `adapters`, `conformance`."""
