"""Privacy amplification by participation schedules, from the distribution of the likelihood ratio over all rounds.

Theorem (docs/theory-participation.md). Let pi be the secret, random set of rounds in which the differing client takes
part. Its distribution may depend neither on data nor on the participation of other clients. Round t publishes f_t + 1{t
in pi} a_t + N(0, sigma^2 C^2 I) with f_t and |a_t| <= C functions of everything published before. Then P = E_pi N(s
1_pi, I_T) and Q = N(0, I_T), s = 1/sigma, dominate in both orders, for zero-out and add-remove.
"""
