"""Settings of a run, from which a method's function makes its chain of stages, and the chains that methods have."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property, partial

import numpy as np
import torch
from torch import Tensor

from accounting.mechanisms.samplings.planned import Sampler
from dpfed import compress
from dpfed.clients.training import LocalTraining
from dpfed.compress.mask_schemes import FedMrnSigned
from dpfed.compress.rotation import FedScalar
from dpfed.config.tables import Config
from dpfed.data.samples import Public
from dpfed.errors import ConfigError
from dpfed.mechanisms.bernoulli import Coins, PrivateCoins
from dpfed.mechanisms.dithered import DitheredNoise
from dpfed.mechanisms.gaussian import GaussianNoise
from dpfed.methods.choices import bound_of_moves, is_linear, sums_integers, weights_by_samples
from dpfed.methods.parts import TrainingParts, fedsparsify_scheme, scheme_of_method
from dpfed.methods.privacy_target import PrivacyTarget, privacy_target_of
from dpfed.methods.specification import MethodSpecification
from dpfed.methods.sums import integer_encoding, most_uploads
from dpfed.participation.sampling import canaries_of
from dpfed.randomness import Randomness
from dpfed.seeds import Seeds
from dpfed.stages.chain import Stages
from dpfed.stages.clip import DropNotFinite, FixedClip, Weigh
from dpfed.stages.encode import Encode
from dpfed.stages.project import (
    MapChoice,
    Project,
    PublicSigns,
    PublicTopMask,
    RandomSharedMask,
    SendAll,
    SharedLayers,
    SharedProjection,
    kept_coordinates,
)
from dpfed.stages.stage import Stage
from dpfed.stages.wires import MaskWire, Symbols, Words, alphabet_of


@dataclass(frozen=True, kw_only=True, eq=False)
class Settings(TrainingParts):
    """Settings of a run: the argument `s` of a method's function that makes the chain of stages."""

    clients: LocalTraining
    sampler: Sampler
    randomness: Randomness
    seeds: Seeds
    public: Public | None

    @property
    def facts(self) -> MethodSpecification:
        """Old name of `specification`, up to version 0.3."""
        return self.specification

    @property
    def size(self) -> int:
        """d, the number of numbers in an update, without those of personal layers."""
        size = self.clients.course.size
        return size if self.clients.personal is None else size - len(self.clients.personal)

    @property
    def sparse(self) -> bool:
        """True if method.keep or method.k sets the number of coordinates that are sent."""
        return self.config.method.keep is not None or self.config.method.k is not None

    @property
    def kept(self) -> int:
        """k, the number of coordinates that are sent."""
        return kept_coordinates(self.size, keep=self.config.method.keep, k=self.config.method.k)

    @property
    def linear(self) -> bool:
        """True if the server can decode the sum of uploads, and each decoded upload is the clipped row."""
        return is_linear(self.config, self.specification)

    @property
    def sums_integers(self) -> bool:
        """True if rows are rounded to integers before they are summed."""
        return sums_integers(self.config)

    @property
    def signs_are_private(self) -> bool:
        """True if the randomness of an update's stochastic signs is the privacy noise."""
        return self.config.privacy is not None and self.config.privacy.bernoulli

    @property
    def bound_of_moves(self) -> float | None:
        """Size of the stochastic signs of moves of mask probabilities; None if clients send samples of the
        probabilities."""
        return bound_of_moves(self.config)

    @property
    def noise_size(self) -> float:
        """Absolute value of the entries of FedMRNS's seeded noise."""
        return float(self.config.method.options.get("alpha", FedMrnSigned.alpha))

    def updates(self, choice: MapChoice, *own: Stage) -> Stages:
        """Return the chain for updates; the custom stages `own` are inserted after the map.

        The order depends on the rows that are clipped, and on the rows to which noise is added:

        without privacy             Project > DropNotFinite > Encode > Weigh
        clipped, without noise      Project > FixedClip > Encode
        noise on a decodable sum    Project > Clip > GaussianNoise > Encode
        noise on every upload       Project > Clip > GaussianNoise > Encode
        decoded by a trusted server Project > Encode > Clip > GaussianNoise
        sums of integers            Project > Clip > Weigh > Integers > IntegerNoise > Words
        sums of symbols             Project > DropNotFinite > Symbols > Words
        """
        shared, size = self._shared, self.clients.course.size
        project = Project(choice=choice if shared is None else SharedLayers(size=size, shared=shared, inside=choice))
        privacy_target = self.privacy_target(choice.sent)
        if self.sums_integers and self.linear:
            return self._integer_chain(project, privacy_target, own)
        if self.sums_integers:
            return self._symbol_chain(project, privacy_target, own)
        encode = self.encode(choice)
        if privacy_target is None:
            norm = self.config.aggregation.clip_norm
            bound = DropNotFinite() if norm is None else FixedClip(norm=norm)
            return Stages(project, *own, bound, encode, *self._weigh_stages())
        if self.linear or privacy_target.private.in_every_upload:
            return Stages(project, *own, *privacy_target.stages, encode)
        return Stages(project, *own, encode, *privacy_target.stages)

    @cached_property
    def _shared(self) -> Tensor | None:
        """Entries of the shared layers, sorted; None if no layer is personal."""
        if self.clients.personal is None:
            return None
        shared = torch.ones(self.clients.course.size, dtype=torch.bool, device=self.device)
        shared[self.clients.personal] = False
        return shared.nonzero()[:, 0]

    def noise(self, choice: MapChoice) -> GaussianNoise:
        """Return the stage of a private run's Gaussian noise; a custom chain has it directly after `Clip`."""
        privacy_target = self.privacy_target(choice.sent)
        private = None if privacy_target is None else privacy_target.private
        if not isinstance(private, GaussianNoise):
            raise ConfigError(
                "Settings.noise without privacy.noise='gaussian', which sums of integers and releases do not have. "
                "Make the chain by Settings.updates, which has the noise of every configuration, or without noise if "
                "config.privacy is None."
            )
        return private

    def coins(self, choice: MapChoice, *, stochastic: bool = True) -> Stages:
        """Return the chain for masks, or for private stochastic signs.

        Masks are sampled from probabilities if `stochastic`; otherwise they are the threshold of probabilities at 1/2.

        without privacy   Project > DropNotFinite > Coins > MaskWire, or Coins > Words in a secure sum
        private           Project > ClipMoves > PrivateCoins > MaskWire, or PrivateCoins > Words in sums
        """
        project, privacy_target = Project(choice=choice), self.privacy_target(choice.sent)
        secure = self.config.aggregation.kind != "plain"
        table = self.config.privacy
        trials = 1 if table is None else table.trials
        most = trials * most_uploads(self.config, privacy_target)
        bits = most.bit_length() if secure else None
        if privacy_target is None:
            drawn = Coins(randomness=self.randomness, stochastic=stochastic, bits=bits)
            return Stages(project, DropNotFinite(), drawn, self._mask_wire(choice.sent, bits))
        private = privacy_target.private
        assert isinstance(private, PrivateCoins)
        present = canaries_of(self.config, self.size).present_count if self.config.audit.canaries else None
        private = replace(private, canaries=present, bits=private.bits or bits)
        single = private.slots is None and trials == 1
        an_entry = private.bits or (None if single else (trials * (private.slots or 1)).bit_length())
        return Stages(project, *privacy_target.bound, private, self._mask_wire(choice.sent, an_entry, trials))

    def dithered(self, choice: MapChoice) -> Stages:
        """Return the chain Project > Clip > DitheredNoise, whose quantisation error is the noise."""
        privacy_target = self.privacy_target(choice.sent)
        if privacy_target is None or not isinstance(privacy_target.private, DitheredNoise):
            raise ConfigError(
                "a chain with DitheredNoise without privacy.noise='dithered': this noise is for "
                "dp-dithered. Use that method, or GaussianNoise (Settings.noise)."
            )
        return Stages(Project(choice=choice), *privacy_target.stages)

    def largest_in_public(self, kept: int) -> MapChoice:
        """Return the map to Fed-SMP's top `kept` coordinates: those that change most in training on public data."""
        if self.public is None:
            raise ConfigError("Settings.largest_in_public with data.public=0: set data.public to a number of samples.")
        if self.clients.personal is not None:
            raise ConfigError(
                f"local.personal with method.name={self.specification.name!r}: coordinates chosen by public data are "
                "those of all layers. Use fed-smp-randk or dp-fedavg, or remove local.personal."
            )
        steps = public_steps(self.config, self.clients, len(self.public.labels))
        trainer = replace(self.clients, epochs=None, steps=steps)
        inputs, labels = self.public.inputs, self.public.labels
        return PublicTopMask(size=self.size, kept=kept, trainer=trainer, inputs=inputs, labels=labels)

    def shared_directions(self) -> MapChoice:
        """Return the map to inner products with FedScalar's directions of the round, which all clients share."""
        made = scheme_of_method(self.config, self.specification, self.size)
        assert isinstance(made, FedScalar)
        return SharedProjection(size=self.size, scheme=made, purpose="code", stays=self.config.method.stays)

    def coordinates_of_signs(self) -> MapChoice:
        """Return the map to the coordinates of masks or signs that are sent.

        These are all coordinates. With method.keep or method.k they are the top coordinates of training on public data,
        or random ones if the run has no public data.
        """
        if not self.sparse:
            return SendAll(size=self.size)
        if self.public is not None:
            return self.largest_in_public(self.kept)
        return RandomSharedMask(size=self.size, kept=self.kept, scaled=False)

    coordinates_of_coins = coordinates_of_signs  # old name, up to version 0.3

    def public_signs(self, bound: float, *, noise_purpose: str | None = None) -> MapChoice:
        """Return the map of updates to sign probabilities, of the public size `bound`.

        noise_purpose: purpose of the seeds of the round's noise, relative to whose signs probabilities are taken, or
            None
        """
        return PublicSigns(choice=self.coordinates_of_signs(), bound=bound, noise_purpose=noise_purpose)

    def privacy_target(self, sent: int) -> PrivacyTarget | None:
        """Return the privacy target of rounds in which clients send `sent` values; None without [privacy]."""
        if self.config.privacy is None:
            return None
        if sent not in self._privacy_targets:
            self._privacy_targets[sent] = privacy_target_of(self.config, self.specification, sent, self.randomness)
        return self._privacy_targets[sent]

    goal = privacy_target  # old name, up to version 0.3

    @cached_property
    def _privacy_targets(self) -> dict[int, PrivacyTarget]:
        """Cache of calibrated privacy targets, by the number of values that clients send."""
        return {}

    def _integer_chain(self, project: Project, privacy_target: PrivacyTarget | None, own: tuple[Stage, ...]) -> Stages:
        if privacy_target is None or privacy_target.integer_rows is None:
            clip = self.config.aggregation.clip_norm if privacy_target is None else privacy_target.clip_norm
            integers = integer_encoding(self.config, clip, project.sent, self.randomness, self.seeds)
            bound: tuple[Stage, ...] = (
                FixedClip(norm=integers.clip_norm),
                *self._weigh_stages(at_most_one=True),
                integers,
            )
        else:
            integers, bound = privacy_target.integer_rows, privacy_target.stages
        words = Words(size=integers.fixed_point.padded, bits=integers.bits)
        return Stages(project, *own, *bound, words)

    def _symbol_chain(self, project: Project, privacy_target: PrivacyTarget | None, own: tuple[Stage, ...]) -> Stages:
        """Return the chain that sums the scheme's symbols; raises ConfigError for a scheme without symbols."""
        made = scheme_of_method(self.config, self.specification, project.sent)
        alphabet = alphabet_of(made, project.sent)
        bits = ((alphabet - 1) * most_uploads(self.config, privacy_target)).bit_length()
        symbols = Symbols(scheme=made, seeds=self.seeds, seed_purpose=self.specification.seed_purpose)
        return Stages(
            project, *own, DropNotFinite(), symbols, Words(size=project.sent, bits=bits, largest=alphabet - 1)
        )

    def encode(self, choice: MapChoice) -> Encode:
        """Return the stage that encodes rows by the method's scheme."""
        config, pruned = self.config, self.specification.sends_models
        dense = self.model.indices("bias", "normalisation", "statistic") if pruned else self.model.dense
        if self.specification.scheme == "dense" or isinstance(choice, SharedProjection):
            dense = dense[:0]  # no coordinates are sent outside of the scheme
        elif self._shared is not None:
            dense = torch.isin(self._shared.cpu(), dense).nonzero()[:, 0]
        if pruned:
            made = fedsparsify_scheme(config, 0)
        elif isinstance(choice, SharedProjection):
            made = compress.get("dense")
        else:
            made = scheme_of_method(config, self.specification, choice.sent - len(dense))
        return Encode(
            scheme=made,
            scheme_of=partial(fedsparsify_scheme, config) if pruned else None,
            dense=dense.to(self.device) if len(dense) else None,
            seeds=self.seeds,
            seed_purpose=self.specification.seed_purpose,
            model=pruned,
            majority=pruned and config.method.purge == "clients",
            sizes_secret=config.privacy is not None and config.privacy.release == "sum",
            feedback=config.federation.clients if config.method.error_feedback else None,
        )

    def _weigh_stages(self, *, at_most_one: bool = False) -> tuple[Weigh, ...]:
        """Return the stage of clients' weights, their numbers of samples or shares of the largest; none if all are
        equal."""
        if not weights_by_samples(self.config, self.specification) or self.config.aggregation.weights == "uniform":
            return ()
        weights = self.clients.partition.sizes.astype(np.float64)
        return (Weigh(weights=weights / max(weights.max(), 1.0) if at_most_one else weights),)

    def _mask_wire(self, size: int, bits: int | None, largest: int = 1) -> MaskWire | Words:
        return MaskWire() if bits is None else Words(size=size, bits=bits, largest=largest, dtype=torch.float32)


def public_period(config: Config, clients: LocalTraining) -> int | None:
    """Return the largest number of a client's steps in a round, or None if it would reveal the size of a private
    client: sizes are public if data are divided evenly or the run has no [privacy]."""
    sizes_public = config.privacy is None or config.data.partition in ("iid", "resampled")
    return clients.period if clients.epochs is None or sizes_public else None


def public_steps(config: Config, clients: LocalTraining, samples: int) -> int:
    """Return the number of the server's steps on its public samples in a round (method.public_epochs).

    The chosen coordinates may reveal this number. "client-steps" is therefore the number of steps of the client with
    most samples only if this is public. Otherwise it is local.epochs passes over the public samples.
    """
    given, one_pass = config.method.public_epochs, -(-samples // clients.batch_size)
    if isinstance(given, int):
        return given * one_pass
    if clients.epochs is None:
        return clients.period
    largest = public_period(config, clients) if given == "client-steps" else None
    return clients.epochs * one_pass if largest is None else largest
