"""A server that names fewer clients than the shares of noise are sized for, or drops too many, gets nothing."""

import numpy as np
import pytest
from refusals import refused

from dpfed.aggregation.messages import agree_on_terms
from dpfed.aggregation.server import Server
from dpfed.config.tables import parse
from dpfed.errors import DpfedError, SecureSumAborted, WireError
from dpfed.runs.experiment import build

from .served import SHARES, instruction, question

SETTINGS = ("aggregation.kind=protocol", "federation.sampling=all", "aggregation.tolerance=0.1")


class Hostile:
    """Plays the server by the protocol, with a minimum of its own: two."""

    def __init__(self, grid, chosen):
        self.nodes, self.experiment, self.answers = grid(chosen), build(parse(chosen, source="test")), []

    def sum(self, named, *, keys=None, shares=None, uploads=None):
        """The sum that it gets: of `named`, of whom it lets go on at each step only those given."""
        method = self.experiment.method
        sums = method.aggregation
        agreement = agree_on_terms(
            np.array(sorted(named)),
            size=method.stages.width,
            bits=sums.bits,
            threshold=sums.threshold,
            neighbours=sums.neighbours,
            graph_seed=sums.seeds.integer("secagg.graph", 0),
        )
        server = Server(agreement)
        listed = np.array(sorted(named), dtype="<i8").tobytes() + agreement.session
        for client in keys or named:
            server.receive(self.ask("advertise", client, listed))
        forwarded = server.close_step()
        for client in shares or forwarded:
            server.receive(self.ask("share", client, forwarded[client]))
        sealed = server.close_step()
        for client in uploads or sealed:
            server.receive(self.upload(client, sealed[client]))
        for client, request in server.close_step().items():
            server.receive(self.ask("unmask", client, request))
        return server.close()

    def ask(self, step, client, message):
        reply = self.say(question(self.experiment, message=message), client, f"query.{step}")
        return self.noted(step, reply["answer"]["message"])

    def upload(self, client, forwarded):
        reply = self.say(instruction(self.experiment, forwarded=forwarded), client, "train")
        return self.noted("upload", reply["upload"]["payload"])

    def say(self, content, client, kind):
        from flwr.app import Message

        message = Message(content, dst_node_id=1000 - client, message_type=kind)
        return self.nodes.app(message, self.nodes.contexts[1000 - client]).content

    def noted(self, step, answer):
        self.answers.append(step)
        return answer


@pytest.fixture
def hostile(grid, tables):
    """`hostile("table.key=value", ...)`: of the 20 clients of the tables, at least 18 must be in the sum."""
    return lambda *settings: Hostile(grid, tables("dp-fedavg", *SETTINGS, *settings, privacy=SHARES))


def test_a_list_of_two_of_a_hundred_is_answered_by_nobody(hostile):
    server = hostile("federation.clients=100", "federation.cohort=100")
    refused(SecureSumAborted, "2 of 2 clients answered, 90 are needed", server.sum, [3, 40])
    assert server.answers == []


LIES = {
    "names 17": ({"named": range(17)}, []),
    "keys of 17": ({"named": range(20), "keys": range(17)}, ["advertise"]),
    "shares of 17": ({"named": range(20), "shares": range(17)}, ["advertise", "share"]),
    "a sum of 17": ({"named": range(20), "uploads": range(17)}, ["advertise", "share", "upload"]),
}


@pytest.mark.parametrize("lie", LIES)
def test_whoever_drops_one_too_many_at_any_step_gets_no_sum(hostile, lie):
    """17 would pass the protocol's own threshold of 12."""
    terms, steps = LIES[lie]
    server = hostile()
    refused(SecureSumAborted, "18 are needed", server.sum, **terms)
    assert sorted(set(server.answers)) == sorted(steps)


def test_as_many_as_the_noise_is_sized_for_are_summed(hostile):
    """The same conversation with 18: nothing but the number was refused above."""
    summed = hostile().sum(range(20), uploads=range(18))
    assert summed.included_clients.tolist() == list(range(18))


def test_over_a_graph_of_few_neighbours_the_sum_is_refused_by_those_who_lack_nobody(hostile):
    """Dropped clients may be no neighbours of who is asked: it counts all that are to be unmasked."""
    server = hostile("aggregation.neighbours=8")
    graph = agree_on_terms(
        np.arange(20), size=1, bits=8, threshold=0.6, neighbours=8,
        graph_seed=server.experiment.method.aggregation.seeds.integer("secagg.graph", 0),
    ).graph  # fmt: skip
    gone = {graph.circle[0], graph.circle[6], graph.circle[12]}
    with pytest.raises(SecureSumAborted, match=r"17 of 20 clients answered, 18 are needed"):
        server.sum(range(20), uploads=sorted(set(range(20)) - gone))
    assert "unmask" not in server.answers


@pytest.mark.parametrize("named", [[*range(18), 20, 21], [*range(18), -1, -2], [*range(19), 18]])
def test_clients_that_do_not_exist_make_up_no_number(hostile, named):
    server = hostile()
    listed = np.array(named, dtype="<i8").tobytes() + bytes(16)
    refused(WireError, "no clients of this run, or some named twice", server.ask, "advertise", 0, listed)


def test_a_round_beyond_the_run_s_is_not_uploaded_to(hostile):
    server = hostile()
    refused(WireError, "asked for round 2 of 2", server.say, instruction(server.experiment, 2), 3, "train")


def test_a_server_without_noise_of_the_clients_gets_no_sum_of_two_either(grid, tables):
    """Whatever adds the noise: the threshold of the clients that the configuration has, not of those that are named."""
    chosen = tables("dp-fedavg", *SETTINGS[:2], privacy={**SHARES, "placement": "server"})
    server = Hostile(grid, chosen)
    refused(DpfedError, "2 of 2 clients answered, 12 are needed", server.sum, [3, 4])
