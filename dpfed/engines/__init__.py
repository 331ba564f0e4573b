"""Where a round's clients are: in this process (`dpfed.run.loop`), or on the nodes of a distributed engine."""
