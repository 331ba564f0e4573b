"""Assignment of nodes to clients, for a run and for a ClientLevelStrategy."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Set
from logging import WARNING

from flwr.app import ConfigRecord, Message, MessageType, RecordDict
from flwr.serverapp import Grid
from flwr.supercore import log

from dpfed.engines.flower.conversation import read_introduction
from dpfed.errors import RunError, WireError

_PAUSE = 0.2


class NodeDirectory:
    """Assignment of connected nodes to the clients of a run, by the client numbers that nodes report.

    The first node that reports a client is assigned to it as long as it is connected; then the next node is. A
    restarted node may connect before its predecessor is known to be disconnected.

    Any node that may join can be assigned to any client; node authentication decides which nodes may join. A client
    without a node drops out in every round.
    """

    def __init__(self, grid: Grid, *, clients: int, fingerprint: str, patience: float) -> None:
        self._grid, self._clients, self._fingerprint, self._patience = grid, clients, fingerprint, patience
        self._nodes: dict[int, int] = {}
        self._waiting: dict[int, int] = {}
        self._asked: set[int] = set()
        self._refused = ""

    def wait_for_nodes(self, *, more_may_join: bool) -> None:
        """Wait until every client has a node, for at most `patience` seconds.

        If no more nodes may join, waiting ends when the number of nodes that answered is the number of clients. Raises
        RunError if then no client has a node.
        """
        end = time.monotonic() + self._patience
        while not self.is_complete and time.monotonic() < end:
            if not more_may_join and len(self._asked) >= self._clients:
                break
            if not self.ask_new_nodes(timeout=max(1.0, end - time.monotonic())):
                time.sleep(_PAUSE)
        if not self._nodes:
            raise RunError(
                f"no node has joined as a client within {self._patience:g} s{self._refused}. Start SuperNodes with "
                '--node-config "partition-id=0" and so on, and the same app and package.'
                if more_may_join
                else f"no simulated node can be a client{self._refused}."
            )
        if not self.is_complete:
            log(WARNING, "%s of %s clients have a node; the others drop out.", len(self._nodes), self._clients)

    @property
    def is_complete(self) -> bool:
        return len(self._nodes) == self._clients

    def node_of(self, client: int) -> int | None:
        """Return the node of a client; None if the client has no node."""
        return self._nodes.get(client)

    def ask_new_nodes(self, *, timeout: float) -> bool:
        """Ask newly connected nodes for their clients; return True if there were new nodes."""
        present = set(self._grid.get_node_ids())
        self._nodes = _connected_nodes(present, self._waiting) | _connected_nodes(present, self._nodes)
        new = sorted(present - self._asked)
        self._asked = (self._asked & present) | set(new)
        question = RecordDict({"config": ConfigRecord({"fingerprint": self._fingerprint})})
        messages = [Message(question, dst_node_id=node, message_type=MessageType.QUERY) for node in new]
        replies = list(self._grid.send_and_receive(messages, timeout=timeout)) if new else []
        for reply in sorted(replies, key=lambda one: one.metadata.src_node_id):
            self._assign_client(reply)
        return bool(new)

    def _assign_client(self, reply: Message) -> None:
        node = reply.metadata.src_node_id
        try:
            client, fingerprint = read_introduction(reply, self._clients)
            if fingerprint != self._fingerprint:
                raise WireError("another configuration or another version of dpfed.")
            if client in self._nodes and self._nodes[client] != node:
                self._waiting[client] = node
                raise WireError(
                    f"client {client} has a node already. This node must wait until that node is disconnected."
                )
        except WireError as error:
            self._refused = f"; node {node} was refused: {error}"
            log(WARNING, "node %s is refused: %s", node, error)
            return
        self._nodes[client] = node


def _connected_nodes(present: Set[int], nodes: Mapping[int, int]) -> dict[int, int]:
    return {client: node for client, node in nodes.items() if node in present}


class NodePopulation:
    """Nodes that are the clients of a ClientLevelStrategy; they are fixed at the first round.

    The wrapped strategy gets this object in place of Flower's grid, and requests node ids only.
    """

    def __init__(self, *, count: int, named: list[int] | None) -> None:
        self.count, self.ids = count, named or []
        self._met = False

    def wait_for_nodes(self, grid: Grid, patience: float) -> None:
        """Wait for the planned nodes before the first round.

        Raises RunError if nodes are missing after `patience` seconds, or if there are more nodes than planned."""
        end = time.monotonic() + patience
        while not self._met:
            there = sorted(grid.get_node_ids())
            if self.ids:
                self._met = set(self.ids) <= set(there)
            elif len(there) > self.count:
                raise RunError(
                    f"{len(there)} nodes for clients={self.count}: which of them are clients must not depend on who is "
                    "first. Give clients as the list of their node ids, or all of them."
                )
            elif len(there) == self.count:
                self.ids, self._met = there, True
            if not self._met and time.monotonic() > end:
                raise RunError(
                    f"{len(there)} nodes after {patience:g} s, and not all of the {self.count} that are clients. Start "
                    "them, or plan for fewer; nothing was released."
                )
            if not self._met:
                time.sleep(min(1.0, patience / 10))

    def get_node_ids(self) -> Iterable[int]:
        return list(self.ids)
