"""Sums of uploads. The server may see exactly what the aggregator returns."""
