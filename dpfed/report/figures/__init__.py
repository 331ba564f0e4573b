"""Figures, written as PNG without a display. matplotlib is imported only here."""
