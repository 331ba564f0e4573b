"""Audits of other projects: accountants and Flower's strategies."""
