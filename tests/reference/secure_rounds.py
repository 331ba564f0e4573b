"""The protocol step by step, with every message kept: what tests look at and tamper with."""

from dataclasses import dataclass, field

import numpy as np

from dpfed.aggregation.client import Client
from dpfed.aggregation.messages import agree_on_terms
from dpfed.aggregation.server import Server

BEFORE = {"advertise": 0, "share": 1, "upload": 2, "unmask": 3}


@dataclass(kw_only=True)
class SecureRound:
    """One round of clients 0, 3, 6 ... with `size` coordinates; `run_to` plays it up to before a step."""

    clients: int = 4
    size: int = 8
    bits: int = 17
    threshold: float = 0.6
    neighbours: int | None = None
    dropped: tuple[int, ...] = ()  # send shares, and no row
    rows: np.ndarray | None = None
    said: dict[str, dict[int, bytes]] = field(default_factory=dict)  # by the clients
    told: dict[str, dict[int, bytes]] = field(default_factory=dict)  # by the server

    def __post_init__(self):
        self.ids = np.arange(self.clients) * 3
        self.terms = agree_on_terms(
            self.ids, size=self.size, bits=self.bits, threshold=self.threshold, neighbours=self.neighbours, graph_seed=1
        )
        if self.rows is None:
            shape = (self.clients, self.size)
            self.rows = np.random.default_rng(0).integers(0, 1 << self.bits, shape, dtype=np.uint64).astype(np.uint32)
        self.server = Server(self.terms)
        self.client = {int(one): Client(self.terms, int(one)) for one in self.ids}

    def run_to(self, step):
        """Play every step before this one."""
        for name in list(BEFORE)[: BEFORE[step]]:
            self.speak(name)
            self.deliver(name)
        return self

    def speak(self, step):
        """What the clients say in this step, not yet delivered."""
        if step == "advertise":
            said = {one: client.advertise() for one, client in self.client.items()}
        elif step == "share":
            said = {one: client.share(self.told["advertise"][one]) for one, client in self.client.items()}
        elif step == "upload":
            for one, client in self.client.items():
                client.store_shares(self.told["share"][one])
            places = {int(one): place for place, one in enumerate(self.ids)}
            said = {one: client.upload(self.rows[places[one]]) for one, client in self.client.items()}
        else:
            said = {one: self.client[one].unmask(request) for one, request in self.told["upload"].items()}
        self.said[step] = said
        return said

    def deliver(self, step):
        """The server gets them, dropped clients' rows excepted, and answers."""
        for one, message in self.said[step].items():
            if step != "upload" or one not in self.dropped:
                self.server.receive(message)
        if step != "unmask":
            self.told[step] = self.server.close_step()

    def close(self):
        """All that is left to do, and the total."""
        self.speak("unmask")
        self.deliver("unmask")
        return self.server.close()


def summed(kind, ids, rows, lost, *, bits=17, threshold=0.6, neighbours=None, group=3, seed=0):
    """The result of a sum of this kind: rows come in groups, `lost` clients drop out at their steps."""
    terms = {"size": rows.shape[1], "bits": bits, "threshold": threshold, "neighbours": neighbours, "graph_seed": seed}
    one = kind(agree_on_terms(ids, **terms), dropouts=lost)
    for start in range(0, len(ids), group):
        one.add(ids[start : start + group], rows[start : start + group])
    return one.close()


def draw_rows(count, size, bits, seed=0):
    """Rows [count, size] of random words of the ring."""
    return np.random.default_rng(seed).integers(0, 1 << bits, (count, size), dtype=np.uint64).astype(np.uint32)
