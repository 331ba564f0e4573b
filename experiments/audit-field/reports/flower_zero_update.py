"""The clip of a zero update."""

import numpy as np
from flwr.supercore.differential_privacy import clip_inputs_inplace

try:
    clip_inputs_inplace([np.zeros(3)], 1.0)
except ZeroDivisionError as error:
    print("ZeroDivisionError:", error)
