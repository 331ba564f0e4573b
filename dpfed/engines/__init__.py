"""Engines whose nodes hold the clients of a round; `dpfed.runs.loop` trains them in this process."""
