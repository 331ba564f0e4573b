"""Statistical tests of scores, which need only numpy and scipy."""
