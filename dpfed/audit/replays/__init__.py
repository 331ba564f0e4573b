"""Replay audits: two runs on neighbouring data, equal in all that no mechanism protects."""
