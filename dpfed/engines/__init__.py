"""Where a round's clients are: in this process (`dpfed.runs.loop`), or on the nodes of a distributed engine."""
