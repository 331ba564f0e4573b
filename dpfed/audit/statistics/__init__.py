"""Statistics of scores, on numpy and scipy only."""
