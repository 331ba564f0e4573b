"""Where a round's clients are: in this process (`dpfed.federation`), or on the nodes of a distributed engine."""
