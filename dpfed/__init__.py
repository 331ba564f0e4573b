"""Differentially private federated learning with compressed uploads: budget, run, audit.

Importing this package loads neither torch nor dp-accounting; the parts that need them load them.
"""

__version__ = "0.2.0"
