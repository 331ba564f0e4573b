"""Increase of epsilon by integer sums: rounded uploads with discrete noise against real ones with continuous noise.

100 clients, d = 1.6e6, noise multiplier 1.4 relative to the real clip norm, delta 1e-5, zero-out. The discrete Gaussian
is compared under the best account; Skellam, which has only a Renyi account, with the Gaussian's Renyi account.

python experiments/secure-sum-noise/run.py      prints the table as markdown; half a minute
"""

import math

from accounting import (
    Adjacency,
    Composed,
    DiscreteGaussian,
    Gaussian,
    PoissonSampling,
    Skellam,
    Subsampled,
    guarantee,
)
from accounting.compose.accountant import Accountant
from accounting.integers import fixed_point

SHARES, DIMENSION, NOISE_MULTIPLIER, DELTA = 100, 1_600_000, 1.4, 1e-5
SCALES = (1000, 3000, 5000, 6000, 16384)
CONTINUOUS = Gaussian(noise_multiplier=NOISE_MULTIPLIER, adjacency=Adjacency.ZERO_OUT)
Noise = type[DiscreteGaussian] | type[Skellam]
LAWS: tuple[tuple[Noise, str, Accountant], ...] = (
    (DiscreteGaussian, "discrete Gaussian", "best"),
    (Skellam, "Skellam", "rdp"),
)


def noise(law: Noise, scale: int) -> DiscreteGaussian | Skellam:
    """Return one round in which each of SHARES uploads has its share, with an integer variance for exact samplers."""
    return law(
        dimension=DIMENSION,
        l2_bound=fixed_point.rounded_l2(scale, DIMENSION),
        share_variance=float(math.ceil((NOISE_MULTIPLIER * scale) ** 2 / SHARES)),
        shares=SHARES,
        adjacency=Adjacency.ZERO_OUT,
    )


def run(round_: Gaussian | DiscreteGaussian | Skellam, rounds: int) -> Composed:
    """Return one plain round, or many rounds with a tenth of the clients each."""
    if rounds == 1:
        return Composed(parts=((round_, 1),))
    return Composed(parts=((Subsampled(mechanism=round_, sampling=PoissonSampling(probability=0.1)), rounds),))


def overhead(law: Noise, scale: int, rounds: int, accountant: Accountant) -> float:
    """Return the relative increase of epsilon over continuous noise, under one accountant."""
    ours, theirs = (
        guarantee(run(round_, rounds), delta=DELTA, accountant=accountant, with_lower_bound=False).epsilon
        for round_ in (noise(law, scale), CONTINUOUS)
    )
    return ours / theirs - 1


def bits(law: Noise, scale: int, rotate: bool) -> int:
    return fixed_point.sum_bits(
        law=noise(law, scale).kind,  # type: ignore[arg-type]
        uploads=SHARES,
        dimension=DIMENSION,
        scaled_clip=scale,
        noise_variance=noise(law, scale).variance,
        rotate=rotate,
    )


def main() -> None:
    headings = (
        "law",
        "steps per clip norm",
        "std of a share",
        "D / (s C)",
        "epsilon (zero-out), T = 1",
        "epsilon (zero-out), q = .1, T = 100",
    )
    print("| " + " | ".join((*headings, "bits rotated", "bits not rotated")) + " |")
    print("|---|" + "---:|" * (len(headings) + 1))
    for law, name, accountant in LAWS:
        for scale in SCALES:
            rises = [f"+{overhead(law, scale, rounds, accountant):.2%}" for rounds in (1, 100)]
            longer = fixed_point.rounded_l2(scale, DIMENSION) / scale
            share = math.sqrt(noise(law, scale).share_variance)
            cells = (
                name,
                scale,
                f"{share:.1f}",
                f"{longer:.4f}",
                *rises,
                bits(law, scale, True),
                bits(law, scale, False),
            )
            print("| " + " | ".join(map(str, cells)) + " |")


if __name__ == "__main__":
    main()
