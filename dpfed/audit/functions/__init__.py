"""Audits of a user's function: its outputs for inputs of two neighbouring worlds, tested against its claim.

`audit` runs the audit, `claim` reads the claim, `worlds` makes the neighbouring inputs, `process` runs the function,
`outputs` and `learnt_scores` turn its outputs into scores.
"""
