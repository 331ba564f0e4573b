"""Reports of runs: HTML pages, figures, model cards, registry entries and diagnoses."""
