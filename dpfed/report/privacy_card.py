"""The privacy card of a run: its guarantee, for whom, and the guarantee's limitations, before any other result."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from accounting.rounding import downwards, upwards
from dpfed.records.summary import Summary
from dpfed.report.privacy_text import (
    adversary_text,
    delta_text,
    noise_text,
    readings_text,
    sampler_name,
    sampling_text,
    statement,
    unit_text,
)
from dpfed.report.units import duration, percent, significant, size

Mood = Literal["good", "bad", "mind"]


@dataclass(frozen=True, kw_only=True)
class Badge:
    """Short label in a colour."""

    words: str
    mood: Mood


@dataclass(frozen=True, kw_only=True)
class Number:
    """Number in large type, its name, and the conditions to read with it."""

    name: str
    value: str
    beside: str


@dataclass(frozen=True, kw_only=True)
class Fact:
    """A name, and a text or a list of texts."""

    name: str
    words: str = ""
    lines: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Card:
    """Sentence, badges, numbers and named texts at the top of a run's page."""

    sentence: str = ""
    badges: tuple[Badge, ...]
    numbers: tuple[Number, ...]
    facts: tuple[Fact, ...]


def card_of(summary: Summary) -> Card:
    """Return the card of a finished run. Epsilon and delta are rounded upwards, lower bounds downwards."""
    return Card(
        sentence=statement(summary),
        badges=_badges(summary),
        numbers=tuple(_numbers(summary)),
        facts=tuple(_card_texts(summary)),
    )


def short_card_of(summary: Summary) -> Card:
    """Return the card without its sentence and named texts, to be shown beside others."""
    return Card(badges=_badges(summary), numbers=tuple(_numbers(summary)), facts=())


def _badges(summary: Summary) -> tuple[Badge, ...]:
    if summary.epsilon is None:
        return (Badge(words="no statement" if summary.no_statement else "not private", mood="bad"),)
    private = Badge(words=f"{summary.unit}-level differential privacy", mood="good")
    if summary.randomness == "secure":
        return private, Badge(words="noise from the operating system", mood="good")
    return private, Badge(words="experiment: not for release", mood="mind")


def _numbers(summary: Summary) -> list[Number]:
    if summary.epsilon is None:
        beside = "its bounds contradict" if summary.no_statement else "nothing bounds what the model reveals"
        first = Number(name="epsilon", value="none", beside=beside)
    else:
        first = Number(name="epsilon, at most", value=upwards(summary.epsilon), beside=delta_text(summary))
    sent = summary.uplink_bytes_per_client_round
    return [
        first,
        score_of(summary),
        Number(
            name="sent by a client in a round",
            value="–" if sent is None else size(sent),
            beside=_traffic(summary),
        ),
        Number(
            name="time",
            value=duration(summary.seconds),
            beside=f"{summary.rounds:,} rounds on {_device(summary)}",
        ),
    ]


def _traffic(summary: Summary) -> str:
    bits, megabytes = summary.uplink_bits_per_parameter, summary.uplink_megabytes_total
    words = [] if bits is None else [f"{significant(bits)} bits a parameter"]
    return ", ".join([*words, *([] if megabytes is None else [f"{size(1e6 * megabytes)} in all"])])


def score_of(summary: Summary) -> Number:
    """Return the accuracy for classes, else the loss."""
    if summary.test_accuracy is not None:
        best = summary.best_test_accuracy
        beside = "last round" if best is None else f"last round; best over rounds {percent(best)}, which flatters"
        return Number(name="test accuracy", value=percent(summary.test_accuracy), beside=beside)
    loss = summary.test_loss
    name = f"test loss ({summary.loss})" if summary.loss else "test loss"
    return Number(name=name, value="–" if loss is None else significant(loss, 4), beside="last round")


def _card_texts(summary: Summary) -> list[Fact]:
    facts: list[Fact] = []
    if summary.epsilon is not None:
        facts += [
            Fact(name="For whom", words=unit_text(summary)),
            Fact(name="Against whom", words=adversary_text(summary)),
            Fact(name="Private by", words=_private_by(summary)),
        ]
    if summary.readings is not None:
        facts.append(Fact(name="Likelihood of extraction", lines=_sentences(readings_text(summary.readings))))
    facts += _other_epsilons(summary)
    missing = _sentences(summary.not_protected)
    if missing:
        facts.append(Fact(name="Not protected", lines=missing))
    elif summary.epsilon is not None:
        facts.append(Fact(name="Not protected", words=_ALWAYS))
    notes = _sentences(summary.notes)
    if notes:
        facts.append(Fact(name="Mind", lines=notes))
    return [*facts, Fact(name="Release", words=_release_text(summary))]


_ALWAYS = (
    "What the operator's own files say (diagnostics.jsonl, canaries.jsonl), and choices made by looking at the data."
)


def _private_by(summary: Summary) -> str:
    words = noise_text(summary)
    clip = summary.clip_norm
    if clip is not None:
        words += f"; clip norm {downwards(clip)}"
    return f"{words[0].upper()}{words[1:]}; {_sampled(summary)} clients."


def _sampled(summary: Summary) -> str:
    return f"{sampling_text(summary, sampler_name(summary.sampling))} {summary.clients:,}"


def _other_epsilons(summary: Summary) -> list[Fact]:
    facts: list[Fact] = []
    hostile = None if summary.sampling == "all" else summary.hostile_clients_epsilon
    server_words = " against the server, which knows who took part"
    for name, words, epsilon, rounds in (
        ("Against the server", server_words, summary.server_epsilon, summary.server_epsilon_rounds),
        ("Hostile clients", ", whatever other clients send", hostile, summary.hostile_clients_epsilon_rounds),
    ):
        if epsilon is not None:
            drawn = ""
            if rounds is not None:
                drawn = f", for a client drawn in at most {rounds:,} rounds (delta covers those drawn more often)"
            facts.append(Fact(name=name, words=f"Epsilon at most {upwards(epsilon)}{words}{drawn}."))
    if summary.project_epsilon is not None:
        words = f"Epsilon at most {upwards(summary.project_epsilon)} for all runs of {summary.project_ledger}."
        facts.append(Fact(name="Whole project", words=f"{words} {summary.project_condition or ''}".rstrip()))
    return facts


def _release_text(summary: Summary) -> str:
    if summary.epsilon is None:
        return "Do not release the model where its training data are not public: nothing bounds what it reveals."
    if summary.randomness == "secure":
        return (
            "The model, this page, the ledger and metrics.jsonl may be released under this guarantee, if what is said "
            "above is acceptable to those whose data it was."
        )
    return (
        "Do not release this model: its noise can be worked out from the seed. A run with --release "
        "(run.release = true) takes noise and cohorts from the operating system."
    )


def _sentences(notes: Sequence[str]) -> tuple[str, ...]:
    return tuple(f"{note.rstrip('.')}." for note in notes)


def _device(summary: Summary) -> str:
    name, processes = summary.device or "an unknown device", summary.processes or 1
    where = {"cpu": "the CPU", "cuda": "a GPU"}.get(name, name) + (f" ({summary.gpu})" if summary.gpu else "")
    return where if processes == 1 else f"{where}, {processes:,} processes"
