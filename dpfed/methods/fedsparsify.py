"""FedSparsify: the model is pruned further in every round, and clients send the remaining weights and a bitmap."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from dpfed.methods.specification import ADAPTIVE, MethodSpecification

if TYPE_CHECKING:
    from dpfed.config.tables import Config


def refusals(config: Config) -> Iterator[str]:
    """Yield messages for settings that would not preserve the zeros of sparse models, and for private votes on
    zeros."""
    name, clients_purge = config.method.name, config.method.purge == "clients"
    if config.privacy is not None and clients_purge and config.privacy.release == "sum":
        yield (
            "method.purge='clients' with [privacy]: the majority vote over entries is a release of its own that no "
            "account covers. Use purge 'server', or privacy.release 'uploads', which noises every model first."
        )
    if clients_purge and config.server.rule in ADAPTIVE:
        yield (
            f"server.rule={config.server.rule!r} with method.name={name!r}: this rule would not keep the zeros on "
            "which clients agree. Use 'step'."
        )
    if config.server.average is not None:
        yield f"server.average with method.name={name!r}: an average of sparse models is not sparse. Remove it."


METHODS = (
    MethodSpecification(
        name="fedsparsify",
        scheme="fedsparsify",
        paper="Stripelis et al. 2022: Federated Progressive Sparsification",
        local_training="pruned",
        nominal_bits_per_parameter=0.03 * 32 + 0.2,
        unbiased=False,
        what="the model's largest weights and a bitmap, fewer every round",
        keys=("method.purge",),
        follows_rounds="the sparsity of fedsparsify",
        refusals=refusals,
    ),
)
