"""Replay audits: compare two runs on neighbouring data; all values that no mechanism protects must be equal."""
