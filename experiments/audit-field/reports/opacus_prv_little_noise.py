"""PRVAccountant at a noise multiplier of 0.02."""

import warnings

from opacus.accountants import PRVAccountant

warnings.simplefilter("ignore")
accountant = PRVAccountant()
accountant.history = [(0.02, 0.1, 1)]
print(accountant.get_epsilon(1e-5))
