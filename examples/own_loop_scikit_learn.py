"""Private training loop without torch: scikit-learn's partial_fit on every client, updates as numpy arrays."""

import copy

import numpy as np
from sklearn.linear_model import SGDClassifier

import dpfed

CLIENTS = 650

digits = dpfed.data.load("digits")
inputs, labels = digits.train_inputs.reshape(-1, 64), digits.train_labels
owner = np.arange(len(inputs)) % CLIENTS
model = SGDClassifier(loss="log_loss", learning_rate="constant", eta0=0.05)
model.partial_fit(np.zeros((1, 64), dtype=np.float32), [0], classes=np.arange(10))


def weights(one: SGDClassifier) -> np.ndarray:
    return np.column_stack([one.coef_, one.intercept_]).ravel()


def update(client: int) -> np.ndarray:
    mine = copy.deepcopy(model)
    mine.partial_fit(inputs[owner == client], labels[owner == client])
    return weights(mine) - weights(model)


private = dpfed.ClientLevel(clients=CLIENTS, cohort=65, clip_norm=1.0, epsilon=3.0, rounds=20, ledger="sklearn.jsonl")
for step in private.rounds():
    moved = weights(model) + step.release(update(client) for client in step.cohort.tolist()).numpy()
    model.coef_, model.intercept_ = moved.reshape(10, 65)[:, :64].copy(), moved.reshape(10, 65)[:, 64].copy()

accuracy = model.score(digits.test_inputs.reshape(-1, 64), digits.test_labels)
print(f"accuracy {accuracy:.1%}, {private.guarantee()}")
