"""The configuration of a run: its tables, presets, and user-defined code."""
