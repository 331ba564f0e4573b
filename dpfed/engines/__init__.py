"""Engines on whose nodes the clients of a round train; `dpfed.runs.loop` trains them in one process."""
