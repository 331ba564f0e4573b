"""Evidence of a claim in the files of a run."""
