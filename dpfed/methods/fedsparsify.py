"""FedSparsify: the model is pruned further in every round, and clients send the remaining weights."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from dpfed import stages
from dpfed.methods.method import FederatedMethod
from dpfed.methods.specification import ADAPTIVE, MethodSpecification

if TYPE_CHECKING:
    from dpfed.clients.task import Course
    from dpfed.config.tables import Config
    from dpfed.methods.parts import ServerParts, TrainingParts
    from dpfed.methods.settings import Settings
    from dpfed.server.rules import ServerRule
    from dpfed.stages.chain import Stages


def pruned_models(s: Settings) -> Stages:
    """Return the chain that sends the model's nonzero weights and a bitmap of their positions."""
    return s.updates(stages.SendAll(size=s.size))


def pruned_training(parts: TrainingParts) -> Course:
    """Return local training that keeps pruned weights at zero."""
    return parts.pruned()


def purging_server(parts: ServerParts) -> ServerRule:
    """Return the server's rule that sets the smallest weights to zero, unless clients purge their models themselves."""
    return parts.purging()


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
            "which "
            "clients agree. Use 'step'."
        )
    if config.server.average is not None:
        yield f"server.average with method.name={name!r}: an average of sparse models is not sparse. Remove it."


METHODS = (
    FederatedMethod(
        specification=MethodSpecification(
            name="fedsparsify",
            scheme="fedsparsify",
            paper="Stripelis et al. 2022: Federated Progressive Sparsification",
            local_training="pruned",
            nominal_bits_per_parameter=0.03 * 32 + 0.2,
            unbiased=False,
            what="the model's largest weights and a bitmap, fewer every round",
            takes=("method.options", "method.purge"),
            follows_rounds="the sparsity of fedsparsify",
            sends_models=True,
        ),
        stages=pruned_models,
        course=pruned_training,
        server=purging_server,
        refusals=refusals,
    ),
)
