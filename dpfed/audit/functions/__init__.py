"""Audits of anybody's function: inputs of two neighbouring worlds in, whatever is seen out.

`audit` runs it, `claim` says what is claimed, `worlds` which neighbours are tried, `process` where the function runs,
`outputs` and `learnt_scores` what becomes of what is seen.
"""
