"""Audits of a user's function: inputs of two neighbouring worlds, and its outputs.

`audit` runs it, `claim` reads the claim, `worlds` makes the neighbours, `process` runs the function, `outputs` and
`learnt_scores` turn its outputs into scores.
"""
