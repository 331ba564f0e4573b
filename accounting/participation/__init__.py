"""Privacy amplification by participation schedules: distribution of the likelihood ratio of whole schedules.

Theorem (docs/theory-participation.md). Let pi be the set of rounds in which the differing client takes part, random
with any distribution that depends neither on data nor on the others' participation, and secret. Round t publishes
f_t + 1{t in pi} a_t + N(0, sigma^2 C^2 I) with f_t and |a_t| <= C functions of everything published before. Then
P = E_pi N(s 1_pi, I_T) and Q = N(0, I_T), s = 1/sigma, dominate in both orders, for zero-out and add-remove.
"""
