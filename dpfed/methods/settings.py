"""What a method's function makes its chain of stages from, and the orders that chains have."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property, partial

import numpy as np
import torch
from numpy.typing import NDArray

from dpfed import compress
from dpfed.clients.masked_noise import NOISE_PURPOSE
from dpfed.clients.training import LocalTraining
from dpfed.compress.mask_schemes import FedMrnSigned
from dpfed.compress.projection import FedScalar
from dpfed.config.tables import Config
from dpfed.data.samples import Public
from dpfed.errors import ConfigError
from dpfed.mechanisms.bernoulli import Coins, PrivateCoins
from dpfed.mechanisms.dithered import DitheredNoise
from dpfed.mechanisms.gaussian import GaussianNoise
from dpfed.methods.choices import coins_of_moves, in_integers, is_linear, seen, signs_are_coins
from dpfed.methods.facts import MethodFacts
from dpfed.methods.goals import PrivacyGoal, goal_of
from dpfed.methods.schemes import scheme, sparse_scheme
from dpfed.methods.sums import filled_to, integers_of, most_uploads
from dpfed.models.flat import FlatModel
from dpfed.participation.canaries import Canaries
from dpfed.participation.sampling import Sampler
from dpfed.randomness import Randomness
from dpfed.seeds import Seeds
from dpfed.stages.chain import Stages
from dpfed.stages.clip import DropNotFinite, FixedClip
from dpfed.stages.encode import Encode
from dpfed.stages.maps import MapChoice, SendAll
from dpfed.stages.project import Project
from dpfed.stages.public_signs import PublicSigns
from dpfed.stages.shared_mask import PublicTopMask, RandomSharedMask, kept_coordinates
from dpfed.stages.shared_projection import SharedProjection
from dpfed.stages.stage import Stage
from dpfed.stages.symbols import Symbols, alphabet_of
from dpfed.stages.weigh import Weigh
from dpfed.stages.wires import MaskWire, Words


@dataclass(frozen=True, kw_only=True, eq=False)
class Settings:
    """The settings of a run, as a method's function sees them (there: `s`)."""

    config: Config
    facts: MethodFacts
    clients: LocalTraining
    sampler: Sampler
    randomness: Randomness
    seeds: Seeds
    model: FlatModel
    device: torch.device
    public: Public | None

    @property
    def size(self) -> int:
        """d, numbers in an update."""
        return self.clients.course.size

    @property
    def sparse(self) -> bool:
        """Whether method.keep or method.k says how many coordinates are sent."""
        return self.config.method.keep is not None or self.config.method.k is not None

    @property
    def kept(self) -> int:
        """How many."""
        return kept_coordinates(self.size, keep=self.config.method.keep, k=self.config.method.k)

    @property
    def linear(self) -> bool:
        """Whether a sum of uploads can be decoded, and what is summed is what was clipped."""
        return is_linear(self.config, self.facts)

    @property
    def whole_numbers(self) -> bool:
        """Whether rows become integers before they are summed."""
        return in_integers(self.config)

    @property
    def signs_are_coins(self) -> bool:
        """Whether an update's signs are private by their own coins."""
        return signs_are_coins(self.config, self.facts)

    @property
    def coins_of_moves(self) -> bool:
        """Whether a mask's coins say how far its probabilities move."""
        return coins_of_moves(self.config)

    def updates(self, choice: MapChoice, *own: Stage) -> Stages:
        """A chain for updates. Its order follows from where they are bounded and what their noise is added to; stages
        of one's `own` stand right behind the map:

        nothing private          Project > DropNotFinite > Encode > Weigh
        private, linear          Project > Clip > GaussianNoise > Encode
        every upload a release   Project > Clip > GaussianNoise > Encode
        a trusted server decodes Project > Encode > Clip > GaussianNoise
        sums of integers         Project > Clip > Weigh > Integers > IntegerNoise > Words
        sums of symbols          Project > DropNotFinite > Symbols > Words
        """
        project = Project(choice=choice)
        goal = self.goal(choice.sent)
        if self.whole_numbers and self.linear:
            return self._integers(project, goal, own)
        if self.whole_numbers:
            return self._symbols(project, goal, own)
        encode = self._encode(choice, goal)
        if goal is None:
            return Stages(project, *own, DropNotFinite(), encode, *self._weigh())
        if self.linear or goal.private.in_every_upload:
            return Stages(project, *own, *goal.stages, encode)
        return Stages(project, *own, encode, *goal.stages)

    def noise(self, choice: MapChoice) -> GaussianNoise:
        """The Gaussian noise of a private run, for a chain of one's own: it stands right behind `Clip`."""
        goal = self.goal(choice.sent)
        if goal is None:
            raise ConfigError("a chain with noise, without [privacy]: set it, or leave the noise out where it is not.")
        assert isinstance(goal.private, GaussianNoise)
        return goal.private

    def encode(self, choice: MapChoice) -> Encode:
        """The method's scheme, for a chain of one's own."""
        return self._encode(choice, self.goal(choice.sent))

    def coins(self, choice: MapChoice) -> Stages:
        """A chain for masks, or signs as coins:

        nothing private   Project > DropNotFinite > Coins > MaskWire (Words under a secure sum)
        private           Project > ClipMoves > PrivateCoins > MaskWire (Words for sums)
        """
        project, goal = Project(choice=choice), self.goal(choice.sent)
        secure = self.config.aggregation.kind != "plain"
        table = self.config.privacy
        trials = 1 if table is None else table.trials
        most = trials * most_uploads(self.config, filled_to(self.config, goal))
        bits = most.bit_length() if secure else None
        if goal is None:
            stochastic = self.facts.name != "fedmask"
            drawn = Coins(randomness=self.randomness, stochastic=stochastic, bits=bits)
            return Stages(project, DropNotFinite(), drawn, self._mask_wire(choice.sent, bits))
        canaries, private = self.canaries(goal), goal.private
        assert isinstance(private, PrivateCoins)
        present = None if canaries is None else canaries.present_in
        private = replace(private, canaries=present, bits=private.bits or bits)
        single = private.slots is None and trials == 1
        an_entry = private.bits or (None if single else (trials * (private.slots or 1)).bit_length())
        return Stages(project, *goal.bound, private, self._mask_wire(choice.sent, an_entry, trials))

    def dithered(self, choice: MapChoice) -> Stages:
        """Project > Clip > DitheredNoise: encoding is the noise."""
        goal = self.goal(choice.sent)
        if goal is None or not isinstance(goal.private, DitheredNoise):
            raise ConfigError(
                "a chain with DitheredNoise in a method whose noise is not in shares: its quantiser is for "
                "dp-dithered. Use that method, or GaussianNoise (Settings.noise)."
            )
        return Stages(Project(choice=choice), *goal.stages)

    def largest_in_public(self, kept: int) -> MapChoice:
        """Fed-SMP's top-k: the coordinates that move most in training on public data."""
        assert self.public is not None
        period = public_period(self.config, self.clients, len(self.public.labels))
        trainer = replace(self.clients, epochs=None, steps=period)
        inputs, labels = self.public.inputs, self.public.labels
        return PublicTopMask(size=self.size, kept=kept, trainer=trainer, inputs=inputs, labels=labels)

    def shared_directions(self) -> MapChoice:
        """FedScalar with directions of the round, in place of each client's."""
        made = scheme(self.config, self.facts, self.size)
        assert isinstance(made, FedScalar)
        return SharedProjection(size=self.size, scheme=made, purpose="code", stays=self.config.method.stays)

    def coordinates_of_coins(self) -> MapChoice:
        """All; with method.keep those that public data rank highest, or that the round draws where there are none."""
        if not self.sparse:
            return SendAll(size=self.size)
        if self.public is not None:
            return self.largest_in_public(self.kept)
        return RandomSharedMask(size=self.size, kept=self.kept, scaled=False)

    def public_signs(self) -> MapChoice:
        """A public size of the signs: never one that comes from the data, which `dpfed.methods.refusals` sees to."""
        options, name = self.config.method.options, self.facts.name
        bound = options.get("alpha", FedMrnSigned.alpha) if name == "fedmrns" else options.get("bound")
        if self.coins_of_moves:
            assert self.config.mask is not None
            bound = self.config.mask.bound
        assert bound is not None  # refused
        purpose = NOISE_PURPOSE if name == "fedmrns" else None
        return PublicSigns(choice=self.coordinates_of_coins(), bound=float(bound), noise_purpose=purpose)

    def goal(self, sent: int) -> PrivacyGoal | None:
        """What rounds in which clients send `sent` values promise; None if nothing is private."""
        if self.config.privacy is None:
            return None
        if sent not in self._goals:
            self._goals[sent] = goal_of(self.config, self.facts, sent, self.randomness)
        return self._goals[sent]

    @cached_property
    def _goals(self) -> dict[int, PrivacyGoal]:
        """Calibrated once."""
        return {}

    def canaries(self, goal: PrivacyGoal | None) -> Canaries | None:
        """Clients that only an audit has, beside the others."""
        config = self.config
        if not config.audit.canaries:
            return None
        assert goal is not None  # refused
        return Canaries(
            count=config.audit.canaries,
            first=config.federation.clients,
            rounds=config.federation.rounds,
            size=self.size,
            seeds=self.seeds,
        )

    def _integers(self, project: Project, goal: PrivacyGoal | None, own: tuple[Stage, ...] = ()) -> Stages:
        if goal is None or goal.integer_rows is None:
            clip = self.config.aggregation.clip_norm if goal is None else goal.clip_norm
            integers = integers_of(self.config, clip, project.sent, self.randomness, self.seeds)
            largest = self._weights()
            weigh = () if largest is None else (Weigh(weights=largest / max(largest.max(), 1.0)),)
            bound: tuple[Stage, ...] = (FixedClip(norm=integers.clip_norm), *weigh, integers)
        else:
            integers, bound = goal.integer_rows, goal.stages
        words = Words(size=integers.fixed_point.padded, bits=integers.bits)
        return Stages(project, *own, *bound, words)

    def _symbols(self, project: Project, goal: PrivacyGoal | None, own: tuple[Stage, ...] = ()) -> Stages:
        """ConfigError for a scheme whose sums cannot be decoded."""
        made = scheme(self.config, self.facts, project.sent)
        alphabet = alphabet_of(made, project.sent)
        bits = ((alphabet - 1) * most_uploads(self.config, filled_to(self.config, goal))).bit_length()
        symbols = Symbols(scheme=made, seeds=self.seeds, seed_purpose=self._seed_purpose)
        return Stages(
            project, *own, DropNotFinite(), symbols, Words(size=project.sent, bits=bits, largest=alphabet - 1)
        )

    def _encode(self, choice: MapChoice, goal: PrivacyGoal | None) -> Encode:
        config, pruned = self.config, self.facts.local_training == "pruned"
        dense = self.model.indices("bias", "normalisation", "statistic") if pruned else self.model.dense
        if self.facts.scheme == "dense" or isinstance(choice, SharedProjection):
            dense = dense[:0]  # everything is
        if pruned:
            made = sparse_scheme(config, 0)
        elif isinstance(choice, SharedProjection):
            made = compress.get("dense")
        else:
            made = scheme(config, self.facts, choice.sent - len(dense))
        return Encode(
            scheme=made,
            scheme_of=partial(sparse_scheme, config) if pruned else None,
            dense=dense.to(self.device) if len(dense) else None,
            seeds=self.seeds,
            seed_purpose=self._seed_purpose,
            model=pruned,
            majority=pruned and config.method.purge == "clients",
            sizes_secret=goal is not None and seen(config) == "sum",
            feedback=config.federation.clients if config.method.error_feedback else None,
        )

    def _weigh(self) -> tuple[Weigh, ...]:
        weights = self._weights()
        return () if weights is None else (Weigh(weights=weights),)

    def _weights(self) -> NDArray[np.float64] | None:
        """Numbers of examples; None where every client counts the same: private, votes."""
        if self.config.privacy is not None or self.config.method.purge == "clients":
            return None
        return self.clients.partition.sizes.astype(np.float64)

    def _mask_wire(self, size: int, bits: int | None, largest: int = 1) -> MaskWire | Words:
        return MaskWire() if bits is None else Words(size=size, bits=bits, largest=largest, dtype=torch.float32)

    @property
    def _seed_purpose(self) -> str:
        return NOISE_PURPOSE if self.facts.local_training == "masked noise" else "code"


def public_period(config: Config, clients: LocalTraining, samples: int) -> int:
    """Steps of the server on its public samples: the clients' local update period, where that is public.

    Under local.epochs the period is that of the client with most samples. Their number follows from the settings where
    data are dealt evenly. Where it is private, one client's would show in the mask: there the server goes through its
    own samples as often.
    """
    if clients.epochs is None or config.privacy is None or config.data.partition in ("iid", "resampled"):
        return clients.period
    return clients.epochs * -(-samples // clients.batch_size)
