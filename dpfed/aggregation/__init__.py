"""Sums of uploads. The server may receive only the output of the aggregator."""
