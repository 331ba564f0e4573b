"""Audits: does what ran keep the privacy that the accountant claims for it?

Statistics of scores, without torch: `rejection` (a claim against two worlds of trials), `epsilon_bounds` (lower
bounds), `one_run`. `thresholds` settles beforehand where scores are cut.
"""
