"""Slow exact answers, written from the formulas of the papers and never from the code under test."""
