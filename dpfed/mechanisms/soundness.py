"""Soundness of chains: rows must be clipped directly before the noise and summed unchanged after it."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import takewhile

from dpfed import compress
from dpfed.config.own_code import registering_file
from dpfed.errors import ConfigError
from dpfed.mechanisms.bernoulli import Coins
from dpfed.mechanisms.dithered import DitheredNoise
from dpfed.mechanisms.gaussian import GaussianNoise
from dpfed.mechanisms.integers import IntegerNoise, Integers
from dpfed.stages.chain import Stages
from dpfed.stages.clip import Clip, ClipMoves, DropNotFinite, FixedClip
from dpfed.stages.encode import Encode
from dpfed.stages.project import Project
from dpfed.stages.stage import Private, Stage, Wire, is_private, stage_attribute
from dpfed.stages.wires import MaskWire, Symbols, Words


def require_form(stages: object) -> Stages:
    """Raise ConfigError unless `stages` is a chain: map first, one wire, and both halves in every stage."""
    if not isinstance(stages, Stages):
        raise ConfigError(f"a method's function gives {type(stages).__name__}; must be dpfed.stages.chain.Stages.")
    lacking = [type(one).__name__ for one in stages if not (hasattr(one, "client") and hasattr(one, "server"))]
    if lacking:
        raise ConfigError(f"the chain {stages!r}: {', '.join(lacking)} must have both halves, client and server.")
    wires = sum(isinstance(one, Wire) for one in stages)
    if not isinstance(next(iter(stages), None), Project) or wires != 1:
        raise ConfigError(f"the chain {stages!r}: {wires} stages have a wire; must begin with Project and have one.")
    return stages


def require_sound(stages: Stages) -> None:
    """Raise ConfigError for a chain whose charge would not cover its release, or that charges nothing.

    Claim: in an accepted chain, rows enter the private stage with the norm that it charges and, unless each upload is a
    release, reach the sum unchanged. A stage after the private stage that changed rows would undo their bound. Unknown
    stages are user-defined; they may be before the bound, or after noised uploads. A user-defined bound or noise is
    trusted: no inspection of a chain shows its behaviour (`is_user_defined`).
    """
    order = tuple(stages)
    private = stages.private
    if private is None:
        raise ConfigError(f"[privacy] with the chain {stages!r}: no stage makes it private. Add one that does.")
    place = next(index for index, stage in enumerate(order) if stage is private)
    _require_noise_before_the_wire(stages, private, order[:place])
    known = stage_attribute(private, "rests_on")
    if not known:
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


def require_sound_schemes(stages: Stages) -> None:
    """Raise ConfigError if a custom scheme in a private chain fails `compress.check`.

    A private chain requires that a scheme encodes each row independently of the others.
    """
    for stage in stages:
        encode = getattr(stage, "encode", stage)
        if not isinstance(encode, Encode):
            continue
        derived = not type(encode.scheme).__module__.startswith("dpfed.")
        if not derived and registering_file("scheme", encode.scheme.name) is None:
            continue
        found = compress.check(encode.scheme, statistics=False)
        if not found.passed:
            words = "; ".join(f"{one.subject}: {one.detail}" for one in found.failed)
            raise ConfigError(
                f"scheme {encode.scheme.name!r} with privacy: does not have the properties that it claims ({words}) "
                f"See `dpfed audit scheme {encode.scheme.name}`."
            )


def _passes_rows(stage: Stage, stages: Stages) -> bool:
    """Return True if the client half leaves rows unchanged; False for a class derived from a stage of dpfed."""
    return type(stage) in (Words, MaskWire) or (type(stage) is Encode and stage is stages.wire and stages.lossless)


def _require_noise_before_the_wire(stages: Stages, private: Private, ahead: Sequence[Stage]) -> None:
    """Raise ConfigError for noise of the clients after the wire, where their bytes are already sent."""
    if (private.in_rows or private.in_every_upload) and any(isinstance(stage, Wire) for stage in ahead):
        raise ConfigError(
            f"the chain {stages!r}: {type(private).__name__} is noise of the clients, but is after "
            f"{type(stages.wire).__name__}, by which their bytes are already sent. Put Clip and the noise before it."
        )


def require_forgetful(stages: Stages, trainer: object) -> None:
    """Raise ConfigError for a private chain, or a trainer of its clients, that remembers clients between rounds.

    Accepted if the private stage declares that its account covers it, or for error feedback and personal layers whose
    memory the charge covers (`Stages.covers_own_memory`).
    """
    for one in (*stages, trainer):
        kept_apart = stages.covers_own_memory and type(one).__module__.startswith("dpfed.")
        covered = stage_attribute(stages.private, "covers_memory") or kept_apart
        if stage_attribute(one, "remembers_clients") and not covered:
            raise ConfigError(
                f"{type(one).__name__} with [privacy]: it remembers data of clients from round to round "
                "(remembers_clients), and no account of this chain covers that. Remove it, or the [privacy] table."
            )


def is_user_defined(stages: Stages) -> tuple[str, ...]:
    """Return the names of the user-defined bound and noise: the charge holds if they behave as declared."""
    return tuple(
        type(stage).__name__
        for stage in stages.own
        if isinstance(stage, Clip | ClipMoves | Integers) or is_private(stage)
    )


def user_code_notes(stages: Stages, test: str = "") -> tuple[str, ...]:
    """Return the limitations of an epsilon that relies on a user-defined bound or noise, or on user-defined stages or
    maps before it that must not mix the rows of clients. No inspection of a chain shows either.
    """
    bounds = is_user_defined(stages)
    ahead = [*takewhile(lambda stage: stage is not stages.private, stages), stages.project.choice]
    others = [type(one).__name__ for one in ahead if not type(one).__module__.startswith("dpfed.")]
    notes = (
        (bounds, "bounds updates or makes them private, and epsilon holds if it does what it says"),
        (
            [name for name in others if name not in bounds],
            "changes updates before their bound, and epsilon holds if each row follows from that client's row alone",
        ),
    )
    return tuple(
        f"against errors in code of your own: {', '.join(names)} {words}{test}" for names, words in notes if names
    )


def _moves_state(stage: Stage) -> bool:
    """Return True if a stage has a user-defined `next_state`."""
    return getattr(type(stage), "next_state", Stage.next_state) is not Stage.next_state


def _require_charged_alone(stages: Stages, private: Private) -> None:
    """Raise ConfigError for a release, or a modular reduction, that the one charge does not cover."""
    others = [stage for stage in stages if is_private(stage) and stage is not private]
    if others:
        raise ConfigError(f"the chain {stages!r}: two stages make it private, and one is charged. Keep one of them.")
    adaptive = getattr(private, "adaptive", None)
    if any(stage.adaptive is not adaptive for stage in stages if isinstance(stage, Clip)):
        raise ConfigError(
            f"the chain {stages!r}: the count that moves the clip norm is not the one that {type(private).__name__} "
            "charges. Give both the same AdaptiveClip, or none."
        )
    counting = [type(stage).__name__ for stage in stages if isinstance(stage, Clip | FixedClip | DropNotFinite)]
    if adaptive is not None and len(counting) > 1:
        raise ConfigError(
            f"the chain {stages!r}: {', '.join(counting)} all count the rows of a client, and the count that moves the "
            "clip norm is charged for one of them. Keep the Clip with the AdaptiveClip alone."
        )
    moving = [stage for stage in stages.own if _moves_state(stage) and not isinstance(stage, Clip)]
    if moving:
        raise ConfigError(
            f"the chain {stages!r}: {type(moving[0]).__name__} changes the state of the next round (next_state), "
            "beside the sum that is charged: a release without a charge. Remove next_state."
        )
    counts = [stage for stage in stages if isinstance(stage, Coins | Symbols) or getattr(stage, "majority", False)]
    if counts and not private.in_every_upload:
        raise ConfigError(
            f"the chain {stages!r}: {type(counts[0]).__name__} decodes the noisy sum by the number of uploads or by "
            "votes, a release without a charge. Remove it, or its majority."
        )
    if isinstance(private, GaussianNoise | DitheredNoise) and private.randomness.name == "secure":
        raise ConfigError(
            f"the chain {stages!r} with randomness='secure': the last bits of floating-point noise leak what it hides. "
            "Use IntegerNoise after Integers, or randomness 'simulated' for an experiment."
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
            "another is not the charged sum. Give all the same bits."
        )
