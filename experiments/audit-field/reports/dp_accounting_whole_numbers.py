"""One event, its noise multiplier as int and as float."""

import dp_accounting
from dp_accounting.rdp import RdpAccountant

for noise_multiplier in (1, 1.0):
    inner = dp_accounting.SelfComposedDpEvent(dp_accounting.GaussianDpEvent(noise_multiplier), 100)
    accountant = RdpAccountant()
    accountant.compose(dp_accounting.PoissonSampledDpEvent(0.01, inner))
    print(repr(noise_multiplier), accountant.get_epsilon(1e-5))
