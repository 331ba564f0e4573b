"""Privacy card of a run, and the conditions of its epsilon."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from accounting.rounding import downwards, upwards
from dpfed.records.summary import Summary
from dpfed.report.privacy_text import (
    adversary_text,
    delta_text,
    duration_text,
    noise_text,
    percent_text,
    privacy_statement,
    project_text,
    readings_text,
    sampling_text,
    significant_text,
    size_text,
    unit_text,
)

NO_GUARANTEE = "no guarantee"


def conditions_of(summary: Summary) -> dict[str, str]:
    """Return the conditions of the run's epsilon by their names; empty for a run without a guarantee."""
    if summary.epsilon is None or summary.delta is None:
        return {}
    return {
        "unit": summary.unit,
        "neighbours": summary.adjacency or "–",
        "delta": upwards(summary.delta),
        "sampler": "all uploads visible" if summary.noise_placement == "uploads" else summary.sampling,
        "public samples": f"{summary.public_samples:,}" if summary.public_samples else "none",
    }


def conditions_text(summary: Summary) -> str:
    """Return the conditions as one text, such as "client, add-remove, delta 1e-4, poisson, 137 public"."""
    found = conditions_of(summary)
    if not found:
        return NO_GUARANTEE
    words = [found["unit"], found["neighbours"], f"delta {found['delta']}", found["sampler"]]
    return ", ".join(words + ([f"{found['public samples']} public"] if summary.public_samples else []))


def differing_conditions(rows: Sequence[tuple[str, Summary]]) -> str | None:
    """Return a sentence that names the conditions in which private rows differ, with the rows; None if none differ."""
    private = [(row, conditions_of(summary)) for row, summary in rows if summary.epsilon is not None]
    parts = []
    for name in private[0][1] if private else ():
        by_value: dict[str, dict[str, None]] = {}
        for row, found in private:
            by_value.setdefault(found[name], {})[row] = None
        if len(by_value) > 1:
            shown = (value + ' ("' + '", "'.join(some) + '")' for value, some in by_value.items())
            parts.append(f"{name}: {', '.join(shown)}")
    if not parts:
        return None
    return f"Epsilons of these rows are different guarantees. They differ in {'; '.join(parts)}."


BadgeTone = Literal["good", "bad", "mind"]


@dataclass(frozen=True, kw_only=True)
class Badge:
    """Short label; `tone` sets its colour: good, bad, or mind (a caution)."""

    label: str
    tone: BadgeTone


@dataclass(frozen=True, kw_only=True)
class CardNumber:
    """Number in large type, with its name and its conditions."""

    name: str
    value: str
    conditions: str


@dataclass(frozen=True, kw_only=True)
class CardText:
    """A heading `name` with a text, or with a list of texts."""

    name: str
    text: str = ""
    items: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class PrivacyCard:
    """Content of the card at the top of a run's page: a sentence, badges, numbers and named texts."""

    sentence: str = ""
    badges: tuple[Badge, ...]
    numbers: tuple[CardNumber, ...]
    texts: tuple[CardText, ...]


def card_of(summary: Summary) -> PrivacyCard:
    """Return the card of a finished run. Epsilon and delta are rounded upwards, lower bounds downwards."""
    return PrivacyCard(
        sentence=privacy_statement(summary),
        badges=_card_badges(summary),
        numbers=tuple(_card_numbers(summary)),
        texts=tuple(_card_texts(summary)),
    )


def short_card_of(summary: Summary) -> PrivacyCard:
    """Return the badges and numbers of the card only, for a page with several cards."""
    return PrivacyCard(badges=_card_badges(summary), numbers=tuple(_card_numbers(summary)), texts=())


def _card_badges(summary: Summary) -> tuple[Badge, ...]:
    if summary.epsilon is None:
        return (Badge(label="no statement" if summary.no_statement else "not private", tone="bad"),)
    private = Badge(label=f"{summary.unit}-level differential privacy", tone="good")
    if summary.randomness == "secure":
        return private, Badge(label="noise from the operating system", tone="good")
    return private, Badge(label="experiment: not for release", tone="mind")


def _card_numbers(summary: Summary) -> list[CardNumber]:
    if summary.epsilon is None:
        beside = "its bounds contradict each other" if summary.no_statement else "nothing bounds what the model reveals"
        first = CardNumber(name="epsilon", value="none", conditions=beside)
    else:
        first = CardNumber(name="epsilon, at most", value=upwards(summary.epsilon), conditions=delta_text(summary))
    sent = summary.uplink_bytes_per_client_round
    return [
        first,
        score_of(summary),
        CardNumber(
            name="sent by a client in a round",
            value="–" if sent is None else size_text(sent),
            conditions=_traffic_text(summary),
        ),
        CardNumber(
            name="time",
            value=duration_text(summary.seconds),
            conditions=f"{summary.rounds:,} rounds on {_device_text(summary)}",
        ),
    ]


def _traffic_text(summary: Summary) -> str:
    bits, megabytes = summary.uplink_bits_per_parameter, summary.uplink_megabytes_total
    words = [] if bits is None else [f"{significant_text(bits)} bits a parameter"]
    return ", ".join([*words, *([] if megabytes is None else [f"{size_text(1e6 * megabytes)} in all"])])


def score_of(summary: Summary) -> CardNumber:
    """Return the test accuracy if targets are classes, else the test loss."""
    if summary.test_accuracy is not None:
        beside = "last round"
        if summary.best_test_accuracy is not None:
            beside += f"; best over rounds {percent_text(summary.best_test_accuracy)}, chosen on the test set"
        if summary.public_samples_alone is not None:
            beside += f"; the public samples alone give {percent_text(summary.public_samples_alone)}"
        return CardNumber(name="test accuracy", value=percent_text(summary.test_accuracy), conditions=beside)
    loss = summary.test_loss
    name = f"test loss ({summary.loss})" if summary.loss else "test loss"
    return CardNumber(name=name, value="–" if loss is None else significant_text(loss, 4), conditions="last round")


def _card_texts(summary: Summary) -> list[CardText]:
    facts: list[CardText] = []
    if summary.epsilon is not None:
        facts += [
            CardText(name="For whom", text=unit_text(summary)),
            CardText(name="Against whom", text=adversary_text(summary)),
            CardText(name="Private by", text=_mechanism_text(summary)),
        ]
    if summary.readings is not None:
        facts.append(CardText(name="Likelihood of extraction", items=_as_sentences(readings_text(summary.readings))))
    facts += _other_epsilons(summary)
    standing = _ALWAYS_UNPROTECTED if summary.epsilon is not None else ()
    if missing := (*_as_sentences(summary.not_protected), *standing):
        facts.append(CardText(name="Not protected", items=missing))
    if notes := _as_sentences(summary.notes):
        facts.append(CardText(name="Mind", items=notes))
    return [*facts, CardText(name="Release", text=_release_text(summary))]


_ALWAYS_UNPROTECTED = (
    "From the server of a plain sum: it sees every upload.",
    "Another unit: epsilon protects clients or records, never both.",
    "Who took part: members and sizes of cohorts, in diagnostics.jsonl and canaries.jsonl of the operator.",
    "Public data, and settings chosen by looking at results.",
    "Times and logs.",
)
"""Standing limitations of every guarantee (docs/limitations.md)."""


def _mechanism_text(summary: Summary) -> str:
    words = noise_text(summary)
    if summary.clip_norm is not None:
        words += f"; clip norm {downwards(summary.clip_norm)}"
    return f"{words[0].upper()}{words[1:]}; {sampling_text(summary)} {summary.clients:,} clients."


def _other_epsilons(summary: Summary) -> list[CardText]:
    facts: list[CardText] = []
    hostile = None if summary.sampling == "all" else summary.hostile_clients_epsilon
    server_words = " against the server, which knows who took part"
    for name, words, epsilon, rounds in (
        ("Against the server", server_words, summary.server_epsilon, summary.server_epsilon_rounds),
        ("Hostile clients", " for any uploads of other clients", hostile, summary.hostile_clients_epsilon_rounds),
    ):
        if epsilon is not None:
            drawn = ""
            if rounds is not None:
                drawn = f", for a client drawn in at most {rounds:,} rounds (delta covers clients drawn more often)"
            facts.append(CardText(name=name, text=f"Epsilon at most {upwards(epsilon)}{words}{drawn}."))
    if words := project_text(summary):
        facts.append(CardText(name="Whole project", text=words))
    return facts


def _release_text(summary: Summary) -> str:
    if summary.epsilon is None:
        return "Do not release the model unless its training data are public: nothing bounds what it reveals."
    if summary.randomness == "secure":
        return (
            "The model, this page, the ledger and metrics.jsonl may be released under this guarantee, if the owners "
            "of the data accept the conditions above."
        )
    return (
        "Do not release this model: its noise can be computed from the seed. A run for release "
        "(`run.release = true`) draws noise and cohorts from the operating system."
    )


def _as_sentences(notes: Sequence[str]) -> tuple[str, ...]:
    """Return the notes with a capital letter, unless a note begins with a key, and a full stop."""
    starts = (note[:1].upper() if note.partition(" ")[0].strip(",:").isalpha() else note[:1] for note in notes)
    return tuple(f"{start}{note[1:].rstrip('.')}." for start, note in zip(starts, notes, strict=True))


def _device_text(summary: Summary) -> str:
    name, processes = summary.device or "an unknown device", summary.processes or 1
    where = {"cpu": "the CPU", "cuda": "a GPU"}.get(name, name) + (f" ({summary.gpu})" if summary.gpu else "")
    return where if processes == 1 else f"{where}, {processes:,} processes"
