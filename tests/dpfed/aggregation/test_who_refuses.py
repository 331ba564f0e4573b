"""Server and clients check the thresholds each for themselves, not one because the other does."""

import pytest
from reference.secure_rounds import SecureRound
from refusals import refused

from dpfed.aggregation.cryptography import shares_needed
from dpfed.aggregation.messages import MessageKind, write_table
from dpfed.errors import SecureSumAborted

SPLIT = (0, 1, 7, 8)  # places on a circle of 14 with 4 neighbours: two gaps of two


def on_the_circle(places, **terms):
    """A round of 14 whose clients at these places send no row."""
    circle = SecureRound(clients=14, neighbours=4, threshold=0.51).terms.graph.circle
    return SecureRound(
        clients=14, neighbours=4, threshold=0.51, dropped=tuple(circle[place] for place in places), **terms
    )


@pytest.mark.parametrize(
    ("group", "threshold", "needed"),
    [
        (20, 0.55, 11),
        (21, 0.6, 13),
        (5, 0.6, 3),
        (3, 2 / 3, 2),
        (10, 0.5 + 1e-12, 6),
        (7, 1, 7),
        (2, 0.51, 2),
        (1, 0.6, 1),
    ],
)
def test_how_many_are_needed(group, threshold, needed):
    assert shares_needed(group, threshold) == needed


def test_the_server_asks_for_nothing_when_the_sum_would_fall_apart():
    round_ = on_the_circle(SPLIT).run_to("upload")
    round_.speak("upload")
    refused(SecureSumAborted, r"at step upload: 10 of 14 clients answered.* no masks connect", round_.deliver, "upload")


def test_a_client_unmasks_nothing_when_the_sum_would_fall_apart():
    round_ = on_the_circle(SPLIT).run_to("upload")
    round_.speak("upload")
    asked = {int(one): bytes([one in round_.dropped]) for one in round_.ids}
    client = next(one for one in map(int, round_.ids) if one not in round_.dropped)
    with pytest.raises(SecureSumAborted, match="no masks connect"):
        round_.client[client].unmask(write_table(MessageKind.REQUEST, round_.terms.session, client, asked))


def test_the_server_asks_for_nothing_when_a_neighbourhood_is_too_small():
    round_ = on_the_circle((0, 1, 3)).run_to("upload")
    round_.speak("upload")
    with pytest.raises(
        SecureSumAborted, match=r"at step upload: of 5 holders of shares of client \d+ 2 answered, 3 are"
    ):
        round_.deliver("upload")


def test_a_client_sends_no_row_among_too_few():
    round_ = SecureRound().run_to("upload")
    with pytest.raises(
        SecureSumAborted, match="at step share: of 4 holders of shares of client 3 1 answered, 3 are needed"
    ):
        round_.client[3].store_shares(write_table(MessageKind.FORWARD, round_.terms.session, 3, {}))
