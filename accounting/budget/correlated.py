"""Noise of a plan that is correlated over rounds, by banded and buffered Toeplitz factorisations (`factorisation`).

The noise multiplier is the standard deviation of a round's fresh noise z over the clip norm. Supported samplings:

- a public order (cyclic), or participations at least `separation` rounds apart (min-separation): participation counts
  as public, so all rounds are one Gaussian mechanism of the factorisation's sensitivity, for any coefficients;
- balls-and-bins with banded noise: clients have public lanes, and round t is for lane t mod lanes. A client's round of
  an epoch is secret among the rounds of its lane. With at most as many bands as lanes the columns of a client do not
  overlap (`mechanisms.BallsAndBins`);
- poisson with banded noise: clients form `bands` public groups, and round t samples group t mod bands with probability
  bands times cohort / clients. The columns of a client do not overlap, so its T / bands rounds are Poisson-sampled
  Gaussians of noise multiplier z / |c| (Choquette-Choo, Ganesh, McKenna, McMahan, Rush, Thakurta, Xu 2023, Theorem 4).
  A client's group must not depend on data.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, ClassVar, Literal, Self, cast

import numpy as np

from accounting import factorisation, require
from accounting.arrays import Floats
from accounting.budget.gaussians import Noise, Setting
from accounting.errors import InvalidParameter, UnsupportedMechanism
from accounting.factorisation.toeplitz import Workload, error
from accounting.mechanisms import (
    Composed,
    CorrelatedRounds,
    Gaussian,
    PoissonSampling,
    SingleRelease,
    repeated,
    subsample,
)
from accounting.mechanisms.samplings.allocation import BallsAndBins, BallsAndBinsSchedule, divisors
from accounting.mechanisms.samplings.planned import PlannedSampling
from accounting.options import option
from accounting.rounding import upwards

_MOST_BUFFERS = 20
MOST_ROUNDS = 10_000
"""Largest number of rounds for which a matrix is optimised, or its error computed."""


@dataclass(frozen=True, kw_only=True)
class CorrelatedNoise(Noise):
    """Base class of Gaussian noise of the server, a part of which later rounds cancel.

    server_momentum, server_decay: momentum and learning-rate decay of the server, for whose weighted sums the matrix is
    optimised. separation: smallest number of rounds from one participation of a client to the next (default: that of
    the sampling). participations: largest number of participations of a client.
    """

    server_momentum: float = option("banded, blt: momentum of the server, for which the matrix is optimised.", 0.0)
    server_decay: float = option("banded, blt: factor of the server's learning rate per round.", 1.0)
    separation: int | None = None
    participations: int | None = None
    most_rounds: ClassVar[int | None] = MOST_ROUNDS
    samplings: ClassVar[tuple[str, ...]] = ("cyclic", "min-separation")

    def matrix(self, workload: Workload, separation: int, participations: int | None) -> dict[str, Any]:
        """Return the fields of `CorrelatedRounds` that define the best matrix for this workload."""
        raise NotImplementedError

    @property
    def sizes(self) -> dict[str, int | None]:
        """Number of bands and of buffers."""
        return {"bands": getattr(self, "bands", None), "buffers": getattr(self, "_buffer_count", None)}

    def validated_for(self, setting: Setting) -> Self:
        """Return the validated noise. Errors: InvalidParameter, UnsupportedMechanism if the setting has no account."""
        sampling = setting.sampling
        if sampling.name not in self.samplings:
            raise UnsupportedMechanism(
                f"noise={self.noise!r} with sampling={sampling.name!r}: a client could take part in rounds with "
                "overlapping noise. Use 'cyclic', 'min-separation', or banded noise with 'balls-and-bins' in as many "
                "lanes as bands, or with 'poisson' in as many public groups as bands."
            )
        if setting.cohort_cap is not None:
            raise InvalidParameter(
                f"cohort_cap={setting.cohort_cap} with noise={self.noise!r}: under a cap the participation of other "
                "clients depends on the client, and no account covers that with correlated noise. Remove it."
            )
        for name, value in (("separation", self.separation), ("participations", self.participations)):
            if value is not None and sampling.name in ("poisson", "balls-and-bins"):
                raise InvalidParameter(
                    f"{name}={require.short_repr(value)} with noise={self.noise!r} and sampling={sampling.name!r}: is "
                    "for cyclic, min-separation. Remove it."
                )
            if value is not None:
                require.count(**{name: value})
        if self._separation(setting) > setting.period and sampling.name == "cyclic":
            raise InvalidParameter(
                f"separation={self.separation} with sampling='cyclic', cohort={setting.cohort} of "
                f"clients={setting.clients}: each client takes part in every {setting.period}th round. Use at most "
                f"{setting.period}, or a smaller cohort."
            )
        self._workload(1)  # raises InvalidParameter for momentum or decay outside their domains
        subsample(Gaussian(noise_multiplier=1.0, adjacency=setting.adjacency), setting.sampler)  # rejects the adjacency
        return self

    def _separation(self, setting: Setting) -> int:
        """Return the least number of rounds from one participation of a client to the next."""
        separation: int | None = getattr(setting.sampling, "separation", self.separation)
        return separation or setting.period

    def _workload(self, rounds: int) -> Workload:
        """Return the workload: the weighted sums of the rounds that form the model."""
        return Workload(rounds=rounds, momentum=self.server_momentum, decay=self.server_decay)

    def stream(self, setting: Setting, rounds: int) -> CorrelatedRounds:
        """Return the best matrix for `rounds` rounds, as the schedule of correlated rounds.

        In sampled groups a client's columns do not overlap, so the matrix is optimised for one participation.
        """
        if rounds > MOST_ROUNDS:
            raise InvalidParameter(f"rounds={rounds} with noise={self.noise!r}: must be at most {MOST_ROUNDS}.")
        if setting.sampling.name == "balls-and-bins":
            matrix = self.matrix(self._workload(rounds), rounds, 1)  # columns of a lane do not overlap
            lanes = getattr(setting.sampling, "lanes", None) or 1
            return CorrelatedRounds(separation=lanes, stream=setting.stream, **matrix)
        if setting.sampling.name == "poisson":
            return self.public_stream(rounds, separation=rounds, participations=1, stream=setting.stream)
        separation, times = self._separation(setting), self.participations
        due = -(-rounds // (setting.period if setting.sampling.name == "cyclic" else separation))
        if times is not None and times < due:
            raise InvalidParameter(
                f"participations={times} with sampling={setting.sampling.name!r}: in {rounds} rounds a "
                f"client can take part {due} times. Use at least {due}, fewer rounds, or a longer separation."
            )
        return self.public_stream(rounds, separation=separation, participations=times, stream=setting.stream)

    def public_stream(
        self, rounds: int, *, separation: int, participations: int | None = None, stream: str = ""
    ) -> CorrelatedRounds:
        """Return the best matrix for clients whose participations are public and `separation` rounds apart."""
        matrix = self.matrix(self._workload(rounds), separation, participations)
        return CorrelatedRounds(separation=separation, participations=participations, stream=stream, **matrix)

    def round(self, setting: Setting, noise_multiplier: float | None, rounds: int | None) -> SingleRelease:
        """Return the mechanism of one of `rounds` rounds, as a ledger line states it."""
        z = require.noise_multiplier(noise_multiplier)
        stream = self.stream(setting, require.count(rounds=rounds))
        return subsample(Gaussian(noise_multiplier=z, adjacency=setting.adjacency), stream)

    def prefix_error(self, setting: Setting, noise_multiplier: float, rounds: int) -> float:
        """Return the root mean square over rounds of the noise in the model, in clip norms.

        Without momentum and decay of the server the model is a prefix sum of the rounds.
        """
        column = factorisation.column(self.stream(setting, rounds), rounds)
        return noise_multiplier * self._model_error(column, rounds)

    def _model_error(self, coefficients: Floats, rounds: int) -> float:
        return error(coefficients, self._workload(rounds))

    def details(self, setting: Setting, noise_multiplier: float | None, rounds: int) -> Mapping[str, object]:
        """Return kind, size and matrix of the noise, and its error in the model, for the JSON of a budget."""
        return {
            "noise": self.noise,
            **self.sizes,
            "factorisation": self.stream(setting, rounds).to_dict(),
            "prefix_error_in_clips": self.prefix_error(setting, require.noise_multiplier(noise_multiplier), rounds),
        }

    def notes(self, setting: Setting, run: Composed, noise_multiplier: float | None, rounds: int) -> tuple[str, ...]:
        """Return notes on the error in the model, compared with independent noise, and on conditions."""
        z = require.noise_multiplier(noise_multiplier)
        sums = "sums over rounds are" if self.server_momentum == 0 and self.server_decay == 1 else "the model is"
        size = next(f"{count} {name}" for name, count in self.sizes.items() if count)
        here = upwards(self.prefix_error(setting, z, rounds))
        error_text = f"noise in {size}: {sums} perturbed by {here} C on average"
        if setting.sampling.name == "poisson":
            groups = f"in {self.sizes['bands']} public groups that take turns"
            return (error_text, f"only for planning, {groups}: `dpfed run` does not support this noise")
        if setting.sampling.name == "balls-and-bins":
            return (error_text,)
        stream = self.stream(setting, rounds)
        times, c = stream.most_participations(rounds), factorisation.column(stream, rounds)
        sensitivity = factorisation.sensitivity(
            c, rounds=rounds, separation=stream.separation, participations=self.participations
        )
        independent_error = z * math.sqrt(times) / sensitivity * self._model_error(np.ones(1), rounds)
        return (f"{error_text}; independent noise of the same epsilon perturbs by {upwards(independent_error)} C",)


@dataclass(frozen=True, kw_only=True)
class BandedNoise(CorrelatedNoise):
    """Banded noise: the following `bands` - 1 rounds cancel a part of the noise of a round. bands = 1: independent
    noise.

    factorisation: the matrix of smallest error, or the square root of the prefix-sum matrix. factorisation_power: this
    power of the prefix-sum matrix instead.
    Claim: all rounds are one Gaussian of the factorisation's sensitivity; under poisson and balls-and-bins they are
    amplified.
    Source: Choquette-Choo et al. 2023, Theorem 4; docs/theory-participation.md, Theorems 4 and 5.
    Units: the noise multiplier is the standard deviation of fresh noise over the clip norm; separation in rounds.
    Adjacency: any; with secret rounds not replace-one, except poisson.
    Errors: InvalidParameter for bands missing, or more than the setting allows; UnsupportedMechanism for other
    samplings.

    >>> from accounting import Plan, budget
    >>> noise = budget.BandedNoise(bands=4, factorisation="square-root")
    >>> plan = Plan(clients=100, sampling=budget.Cyclic(cohort=10), mechanism=noise)
    >>> round(budget.epsilon(plan, noise_multiplier=4.0, rounds=20), 4)
    1.4343
    """

    bands: int | None = option(
        "banded: rounds over which noise is cancelled; 1: independent noise. With balls-and-bins equal to the lanes.",
        None,
    )
    factorisation: Literal["optimised", "square-root"] = option(
        "banded: the matrix of smallest error for these rounds, or the square root of prefix sums, in closed form.",
        "optimised",
    )
    factorisation_power: float | None = option(
        "banded: C is this power, in (0, 1), of the matrix of prefix sums, instead of a factorisation. For secret "
        "lanes, where --certificate sampled searches it.",
        None,
    )
    name: ClassVar[str] = "gaussian"
    noise: ClassVar[str] = "banded"
    samplings: ClassVar[tuple[str, ...]] = ("cyclic", "min-separation", "poisson", "balls-and-bins")

    def validated_for(self, setting: Setting) -> Self:
        """Return the validated noise. Errors: InvalidParameter, UnsupportedMechanism if the setting has no account."""
        if self.bands is None:
            if setting.sampling.name != "balls-and-bins":
                raise InvalidParameter("bands is missing: noise='banded' needs it.")
            return super().validated_for(setting)
        require.count(bands=self.bands)
        require.one_of(("optimised", "square-root"), factorisation=self.factorisation)
        if self.factorisation_power is not None:
            require.open_probability(factorisation_power=self.factorisation_power)
            if self.factorisation != "optimised":
                raise InvalidParameter(
                    f"factorisation_power={self.factorisation_power} with factorisation='square-root', which is the "
                    "power 0.5. Remove one of them."
                )
        validated_for = super().validated_for(setting)
        if setting.sampling.name == "balls-and-bins":
            self.round(setting, 1.0, 1)  # rejects more bands than lanes, and lanes that do not divide an epoch
        if setting.sampling.name == "poisson" and self.bands * setting.cohort > setting.clients:
            raise InvalidParameter(
                f"bands={self.bands} with cohort={setting.cohort} of clients={setting.clients}: each of the "
                f"{self.bands} groups must hold a cohort. Use at most {setting.clients // setting.cohort} bands."
            )
        return validated_for

    def matrix(self, workload: Workload, separation: int, participations: int | None) -> dict[str, Any]:
        """Return the first column of the matrix. Errors: InvalidParameter if the number of bands is not set."""
        if self.bands is None:
            raise InvalidParameter(
                "lanes is missing: give lanes or bands. If both epsilon and rounds are given, lanes are searched."
            )
        if self.factorisation_power is not None:
            powers = factorisation.square_root(self.bands, power=self.factorisation_power)
            return {"coefficients": tuple(np.round(powers, 9).tolist())}
        if self.factorisation == "square-root":
            return {"coefficients": tuple(factorisation.square_root(self.bands).tolist())}
        return {"coefficients": _banded_coefficients(self.bands, workload, separation, participations)}

    def first_column(self, rounds: int) -> tuple[float, ...]:
        """Return the first column of the best matrix for clients whose columns do not overlap."""
        column: tuple[float, ...] = self.matrix(self._workload(rounds), rounds, 1)["coefficients"]
        return column

    @property
    def needs_lanes(self) -> bool:
        """True if the number of lanes, which equals the number of bands, must be searched (`budget.advice`)."""
        return self.bands is None

    def with_lanes_and_bands(self, sampling: PlannedSampling, clients: int) -> tuple[PlannedSampling, Self]:
        """Return sampling and noise with both lanes and bands set, if one of the two is given.

        Bands default to the lanes, lanes to the smallest possible number for the bands. Returns both objects unchanged
        if neither number is given.
        Errors: InvalidParameter for more bands than an epoch has rounds.
        """
        if not isinstance(sampling, BallsAndBins):
            return sampling, self
        period = sampling.period(clients)
        if self.bands is None:
            return sampling, self if sampling.lanes is None else replace(self, bands=min(sampling.lanes, period))
        if sampling.lanes is not None:
            return sampling, self
        if require.count(bands=self.bands) > period:
            raise InvalidParameter(
                f"bands={self.bands} with sampling='balls-and-bins': each lane needs a round of an epoch, which has "
                f"{period} rounds. Use at most {period} bands."
            )
        return replace(sampling, lanes=next(one for one in divisors(period) if one >= self.bands)), self

    def round(self, setting: Setting, noise_multiplier: float | None, rounds: int | None) -> SingleRelease:
        """Return the mechanism of one of `rounds` rounds, as a ledger line states it."""
        if setting.sampling.name != "balls-and-bins":
            return super().round(setting, noise_multiplier, rounds)
        coefficients = self.stream(setting, require.count(rounds=rounds)).coefficients
        noise = Gaussian(noise_multiplier=require.noise_multiplier(noise_multiplier), adjacency=setting.adjacency)
        return subsample(noise, replace(cast(BallsAndBinsSchedule, setting.sampler), coefficients=coefficients))

    def run(self, setting: Setting, noise_multiplier: float | None, rounds: int) -> Composed:
        """Return the mechanism of all rounds and of earlier releases; under poisson that of the rounds of one client
        group.
        """
        if setting.sampling.name != "poisson":
            return super().run(setting, noise_multiplier, rounds)
        z, stream = require.noise_multiplier(noise_multiplier), self.stream(setting, require.count(rounds=rounds))
        bands = self.bands or 1
        strength = z / float(np.linalg.norm(factorisation.column(stream, rounds)))
        sampled = PoissonSampling(probability=min(bands * setting.cohort / setting.clients, 1.0))
        release = subsample(Gaussian(noise_multiplier=strength, adjacency=setting.adjacency), sampled)
        return repeated(release, -(-rounds // bands), before=setting.before)


@dataclass(frozen=True, kw_only=True)
class BufferedNoise(CorrelatedNoise):
    """Buffered noise (BLT): later rounds cancel a part of the noise, from a few stored vectors for any number of
    rounds.

    Claim: all rounds are one Gaussian of the factorisation's sensitivity.
    Source: McMahan, Xu, Zhang 2024; Denisov et al. 2022, Theorem 2.1.
    Units: the noise multiplier is the standard deviation of fresh noise over the clip norm; separation in rounds.
    Adjacency: any; with min-separation not replace-one.
    Errors: InvalidParameter for more than 20 buffers; UnsupportedMechanism for samplings other than cyclic and
    min-separation.

    >>> from accounting import Plan, budget
    >>> plan = Plan(clients=100, sampling=budget.Cyclic(cohort=10), mechanism=budget.BufferedNoise(buffers=1))
    >>> round(budget.epsilon(plan, noise_multiplier=4.0, rounds=20), 3)
    1.595
    """

    buffers: int | None = option("blt: vectors that the noise stores, for any number of rounds. Default: 3.", None)
    name: ClassVar[str] = "gaussian"
    noise: ClassVar[str] = "blt"

    @property
    def _buffer_count(self) -> int:
        return 3 if self.buffers is None else self.buffers

    def validated_for(self, setting: Setting) -> Self:
        """Return the validated noise. Errors: InvalidParameter, UnsupportedMechanism if the setting has no account."""
        if require.count(buffers=self._buffer_count) > _MOST_BUFFERS:
            raise InvalidParameter(
                f"buffers={self.buffers}: must be at most {_MOST_BUFFERS}; more than 4 have no benefit."
            )
        return super().validated_for(setting)

    def matrix(self, workload: Workload, separation: int, participations: int | None) -> dict[str, Any]:
        """Return weights and decays of the buffers."""
        weights, decays = _buffer_weights_and_decays(self._buffer_count, workload, separation, participations)
        return {"weights": weights, "decays": decays}


@lru_cache(maxsize=256)
def _banded_coefficients(
    bands: int, workload: Workload, separation: int, participations: int | None
) -> tuple[float, ...]:
    """Return the optimised first column of a banded matrix, which takes a second."""
    from accounting.factorisation import optimise

    return tuple(optimise.banded(bands, workload, separation=separation, participations=participations).tolist())


@lru_cache(maxsize=256)
def _buffer_weights_and_decays(
    count: int, workload: Workload, separation: int, participations: int | None
) -> tuple[tuple[float, ...], tuple[float, ...]]:
    from accounting.factorisation import optimise

    found = optimise.buffers(count, workload, separation=separation, participations=participations)
    return tuple(found[0].tolist()), tuple(found[1].tolist())
