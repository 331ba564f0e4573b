"""The configuration of a run: its tables, presets, and one's own code."""
