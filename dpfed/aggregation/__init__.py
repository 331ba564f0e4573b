"""How uploads are summed. What the server may see is exactly what the aggregator returns."""
