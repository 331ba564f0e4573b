"""Labels that the clients of a partition hold."""

import numpy as np


def label_counts(partition, labels: np.ndarray, classes: int) -> np.ndarray:
    """The number of samples with each label that each client has, [clients, classes]; labels [N] are of all rows."""
    held = [np.bincount(labels[partition.of(client)], minlength=classes) for client in range(partition.clients)]
    return np.array(held, dtype=np.int64).reshape(partition.clients, classes)
