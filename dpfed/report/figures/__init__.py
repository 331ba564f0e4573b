"""Figures of reports, written as PNG without a display. Only this package imports matplotlib."""
