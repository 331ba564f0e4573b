"""Whether a chain does what its private stage charges: what is noised must be bounded, and be what is summed."""

from __future__ import annotations

from dpfed.errors import ConfigError
from dpfed.mechanisms.bernoulli import PrivateCoins
from dpfed.mechanisms.dithered import DitheredNoise
from dpfed.mechanisms.gaussian import GaussianNoise
from dpfed.mechanisms.integers import IntegerNoise, Integers
from dpfed.stages.chain import Stages
from dpfed.stages.clip import Clip
from dpfed.stages.clip_moves import ClipMoves
from dpfed.stages.encode import Encode
from dpfed.stages.mask_wire import MaskWire
from dpfed.stages.project import Project
from dpfed.stages.remembering import covers_memory, remembers_clients
from dpfed.stages.stage import Private, Stage, Stateful, Wire
from dpfed.stages.words import Words

_BEFORE: dict[type, tuple[type, ...]] = {
    GaussianNoise: (Clip,),
    DitheredNoise: (Clip,),
    IntegerNoise: (Clip, Integers),
    PrivateCoins: (ClipMoves,),
}
"""What must stand right before a private stage: the bound that its account rests on, nothing in between."""


def require_form(stages: object) -> Stages:
    """ConfigError for what is no chain of stages: a map first, one wire, both halves in every stage."""
    if not isinstance(stages, Stages):
        raise ConfigError(f"a method's function gives {type(stages).__name__}; must be dpfed.stages.chain.Stages.")
    lacking = [type(one).__name__ for one in stages if not (hasattr(one, "client") and hasattr(one, "server"))]
    if lacking:
        raise ConfigError(f"the chain {stages!r}: {', '.join(lacking)} has not both halves, client and server.")
    wires = sum(isinstance(one, Wire) for one in stages)
    if not isinstance(next(iter(stages), None), Project) or wires != 1:
        raise ConfigError(f"the chain {stages!r}: {wires} stages have a wire; must begin with Project and have one.")
    return stages


def require_sound(stages: Stages) -> None:
    """ConfigError for a chain whose charge would not cover what it does, or that charges nothing.

    Claim: in an accepted chain, rows enter the private stage with the norm that it charges, and, unless each upload is
    a release by itself, leave for the sum as they are: a stage behind it that changed rows would undo their bound.
    Stages that are not known here are one's own; they may stand before the bound, or behind noised uploads. One's own
    bound or noise is taken at its word: no look at a chain shows what its code does (`of_ones_own`).
    """
    order = tuple(stages)
    private = stages.private
    if private is None:
        raise ConfigError(f"[privacy] with the chain {stages!r}: no stage makes it private. Add one that does.")
    place = next(index for index, stage in enumerate(order) if stage is private)
    _require_noise_before_the_wire(stages, private, place)
    known = next((kinds for kind, kinds in _BEFORE.items() if isinstance(private, kind)), None)
    if known is None:
        return
    ahead = order[max(0, place - len(known)) : place]
    if len(ahead) != len(known) or not all(isinstance(one, kind) for one, kind in zip(ahead, known, strict=True)):
        words = " > ".join(kind.__name__ for kind in known)
        raise ConfigError(
            f"the chain {stages!r}: {type(private).__name__} charges for rows that {words} has bounded, right before "
            f"it. Put {words} there."
        )
    _require_charged_alone(stages, private)
    changing = [stage for stage in order[place + 1 :] if not _passes_rows(stage, stages)]
    if changing and not private.in_every_upload:
        raise ConfigError(
            f"the chain {stages!r}: {type(changing[0]).__name__} changes rows after they were bounded, so that their "
            "sum has no bound. Put it before the clip, or make every upload a release."
        )


def _passes_rows(stage: Stage, stages: Stages) -> bool:
    """Whether the client half leaves rows as they are; a stage that is derived from one of ours may not."""
    return type(stage) in (Words, MaskWire) or (type(stage) is Encode and stage is stages.wire and stages.lossless)


def _require_noise_before_the_wire(stages: Stages, private: Private, place: int) -> None:
    """ConfigError for noise of the clients that is behind the bytes that they send."""
    if (private.in_rows or private.in_every_upload) and stages.wire in stages.before(place):
        raise ConfigError(
            f"the chain {stages!r}: {type(private).__name__} is noise of the clients, and stands behind "
            f"{type(stages.wire).__name__}, whose bytes have left them by then. Put Clip and the noise before it."
        )


def require_forgetful(stages: Stages, trainer: object) -> None:
    """ConfigError for a private chain, or a trainer of its clients, that remembers clients between rounds, unless the
    private stage says that its account covers it."""
    for part in (*stages, trainer):
        if remembers_clients(part) and not covers_memory(stages.private):
            raise ConfigError(
                f"{type(part).__name__} with [privacy]: it remembers something of clients from round to round "
                "(remembers_clients), and no account of single rounds covers that. Remove it, or the [privacy] table."
            )


def of_ones_own(stages: Stages) -> tuple[str, ...]:
    """The bound and the noise that are code of one's own, by name: the charge holds if they do what they say."""
    kinds = (Clip, ClipMoves, Integers, Private)
    return tuple(type(stage).__name__ for stage in stages.own if isinstance(stage, kinds))


def _require_charged_alone(stages: Stages, private: Private) -> None:
    """ConfigError for a release, or a reduction, that the one charge leaves out."""
    others = [stage for stage in stages if isinstance(stage, Private) and stage is not private]
    if others:
        raise ConfigError(f"the chain {stages!r}: two stages make it private, and one is charged. Keep one of them.")
    clip = stages.find(Clip)
    if clip is not None and clip.adaptive is not getattr(private, "adaptive", None):
        raise ConfigError(
            f"the chain {stages!r}: the count that moves the clip norm is not the one that {type(private).__name__} "
            "charges. Give both the same AdaptiveClip, or none."
        )
    moving = [stage for stage in stages.own if isinstance(stage, Stateful) and not isinstance(stage, Clip)]
    if moving:
        raise ConfigError(
            f"the chain {stages!r}: {type(moving[0]).__name__} changes what the next round starts from (next_state), "
            "beside the sum that is charged: a release that no account has. Remove next_state."
        )
    if isinstance(private, GaussianNoise) and stages.bits is not None:
        raise ConfigError(
            f"the chain {stages!r}: continuous noise on a sum modulo 2^{stages.bits} hides no wrap-around. Use "
            "IntegerNoise after Integers."
        )
    rings = {stage.bits for stage in stages if isinstance(stage, Integers | Words)}
    if isinstance(private, IntegerNoise) and len(rings) > 1:
        raise ConfigError(
            f"the chain {stages!r}: integers of {sorted(rings)} bits; a sum that is reduced in one ring and decoded in "
            "another is not what is charged. Give all the same bits."
        )
