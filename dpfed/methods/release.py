"""Requirements of runs whose model is for release (run.release = true); one error lists all reasons for a refusal."""

from __future__ import annotations

from collections.abc import Iterator

from dpfed.config.privacy_tables import BernoulliPrivacy
from dpfed.config.tables import Config
from dpfed.errors import ConfigError
from dpfed.methods.choices import is_linear, sends_bernoulli_samples
from dpfed.methods.refusals import refusal_messages
from dpfed.methods.specification import MethodSpecification


def check_release(config: Config, specification: MethodSpecification) -> None:
    """Raise ConfigError, with every reason and remedy, if a model of this method and these settings cannot be released.

    Noise, cohorts and dropouts of a release are drawn from the operating system's randomness, and added noise is drawn
    exactly, as integers. Therefore parsing a configuration sets run.randomness = "secure" and privacy.noise =
    "discrete-gaussian" if they are not given. Bernoulli samples are drawn exactly in any case.
    """
    if not config.run.release:
        return
    reasons, checked = list(_refusal_reasons(config, specification)), config
    if reasons:  # messages about secure randomness would repeat these reasons
        checked = config.model_copy(update={"run": config.run.model_copy(update={"randomness": "simulated"})})
    reasons += refusal_messages(checked, specification)
    if reasons:
        listed = "\n  ".join(reasons)
        raise ConfigError(
            f"run.release=true (--release) with method.name={specification.name!r}: is refused.\n  {listed}"
        )


def _refusal_reasons(config: Config, specification: MethodSpecification) -> Iterator[str]:
    table, coins = config.privacy, sends_bernoulli_samples(config, specification)
    if config.run.randomness != "secure":
        yield (
            f"run.randomness={config.run.randomness!r}: noise and cohorts that follow from a seed protect no client. "
            "Remove run.randomness, or run.release."
        )
    if config.run.on_error == "raise":
        yield (
            "run.on_error='raise': the end of the run would reveal that a client's samples raised an error. Remove it, "
            "or run.release."
        )
    if config.local.strategy == "vmap":
        yield (
            "local.strategy='vmap': in one vectorised pass a client's update depends on the other clients' numbers of "
            "samples, in its last bits, and at a kink of the network in all bits. Use 'auto' or 'loop', or remove "
            "run.release."
        )
    if config.local.record is not None:
        if config.local.record.noise == "gaussian":
            yield (
                "local.record.noise='gaussian': the last bits of floating-point Gaussian noise leak what it hides. "
                "Remove it, or run.release."
            )
        return
    if specification.privacy == "never":
        yield (
            "method.name: its clients are never private. Use dp-fedavg or fedpm with [privacy] to protect clients, or "
            "fedavg with [local.record] to protect records (patients of a few hospitals), or remove run.release."
        )
    elif table is None:
        yield "[privacy] is missing: the model would be released without any noise. Add it, or remove run.release."
    if specification.dithered:
        yield (
            "method.name: the noise of this method is the error of a quantiser, a floating-point number. Use "
            "dp-fedavg, or remove run.release."
        )
    elif not coins and specification.privacy != "never" and not is_linear(config, specification):
        shared = ", or method.shared=true" if specification.linear_if_shared else ""
        with_coins = ", or privacy.noise='coins'" if specification.signs_can_be_private else ""
        yield (
            "method.name: exact noise is added to whole numbers in the sum of uploads, and these uploads cannot be "
            f"decoded from their sum. Use dp-fedavg, fed-smp-randk, fed-smp-topk or fedpm{shared}{with_coins}, or "
            "remove run.release."
        )
    if table is None:
        return
    gaussian = "the last bits of floating-point Gaussian noise leak what it hides. Remove it, or run.release."
    if isinstance(table, BernoulliPrivacy) and table.noise_std:
        yield f"privacy.noise_std={table.noise_std}: {gaussian}"
    if table.noise == "gaussian":
        yield f"privacy.noise='gaussian': {gaussian}"
    for wrong, key in (
        (table.release == "uploads" and not coins, "privacy.release='uploads'"),
        (table.adaptive is not None, "[privacy.adaptive]"),
        (table.bands is not None or table.buffers is not None, "privacy.bands or privacy.buffers"),
        (getattr(config.federation, "lanes", None) not in (None, 1), "federation.lanes"),
        (table.noise_schedule is not None, "privacy.noise_schedule"),
    ):
        if wrong:
            yield (
                f"{key}: is supported with floating-point Gaussian noise only, not with exact noise. Remove it, or "
                "run.release."
            )
