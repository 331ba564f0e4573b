"""Shares: any t give the secret, and t - 1 go with every secret."""

import itertools
import secrets

import pytest
from refusals import refused
from scipy.stats import chisquare

from dpfed.aggregation.cryptography import PRIME, combine_shares, split_secret
from dpfed.errors import WireError

FALSE_ALARM = 1e-9


def newton(points, at):
    """Value of the polynomial through the points, by divided differences: no Lagrange weights."""
    xs, table = [x for x, _ in points], [y for _, y in points]
    for order in range(1, len(points)):
        for place in range(len(points) - 1, order - 1, -1):
            difference = table[place] - table[place - 1]
            table[place] = difference * pow(xs[place] - xs[place - order], -1, PRIME) % PRIME
    value = 0
    for x, coefficient in zip(reversed(xs), reversed(table), strict=True):
        value = (value * (at - x) + coefficient) % PRIME
    return value


def points(shares):
    return [(holder + 1, int.from_bytes(share)) for holder, share in shares.items()]


def test_the_field_is_the_mersenne_prime():
    assert pow(3, PRIME - 1, PRIME) == 1
    value = 4  # Lucas and Lehmer: 2^p - 1 is prime if and only if this ends at zero
    for _ in range(519):
        value = (value * value - 2) % PRIME
    assert value == 0


@pytest.mark.parametrize(("needed", "holders"), [(1, 1), (1, 3), (2, 2), (3, 5), (4, 7), (7, 7)])
def test_every_subset_of_t_gives_the_secret(needed, holders):
    secret = secrets.token_bytes(32)
    shares = split_secret(secret, needed, [5 * holder for holder in range(holders)])
    for chosen in itertools.combinations(shares, needed):
        some = {holder: shares[holder] for holder in chosen}
        assert combine_shares(some) == secret
        assert newton(points(some), 0) == int.from_bytes(secret)
    extra = points(shares)
    for x, y in extra[needed:]:
        assert newton(extra[:needed], x) == y


@pytest.mark.parametrize("secret", [bytes(32), b"\xff" * 32, bytes(31) + b"\x01"], ids=["zeros", "ones", "one"])
def test_secrets_at_the_edges(secret):
    shares = split_secret(secret, 51, range(0, 1 << 62, 1 << 55))
    assert combine_shares(dict(list(shares.items())[-51:])) == secret


def test_one_share_too_few_goes_with_every_secret():
    shares = split_secret(secrets.token_bytes(32), 4, range(6))
    known = points({holder: shares[holder] for holder in (0, 2, 5)})
    for other in (bytes(32), b"\xff" * 32, secrets.token_bytes(32)):
        missing = newton([(0, int.from_bytes(other)), *known], 4)  # what client 3 would hold
        completed = {holder: shares[holder] for holder in (0, 2, 5)} | {3: missing.to_bytes(66)}
        assert combine_shares(completed) == other


def test_too_few_shares_are_not_a_secret():
    shares = split_secret(bytes(32), 4, range(6))
    with pytest.raises(WireError, match="not of one secret"):  # passes by luck once in 2^265
        combine_shares({holder: shares[holder] for holder in range(3)})


@pytest.mark.parametrize("wrong", [bytes(65), b"\xff" * 66, PRIME.to_bytes(66)], ids=["short", "large", "prime"])
def test_shares_that_cannot_be(wrong):
    refused(WireError, "", lambda: combine_shares({0: wrong, 1: bytes(66)}))


def test_a_single_share_is_uniform_whatever_the_secret():
    for secret in (bytes(32), b"\xff" * 32):
        tops = [int.from_bytes(split_secret(secret, 2, [0, 1])[0]) >> 513 for _ in range(8000)]
        counts = [tops.count(value) for value in range(256)]
        assert chisquare(counts).pvalue > FALSE_ALARM


def test_fresh_randomness_every_time():
    one, other = (split_secret(bytes(32), 3, range(3)) for _ in range(2))
    assert not set(one.values()) & set(other.values())
