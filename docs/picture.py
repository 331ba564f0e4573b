"""Draw README's picture: `python docs/picture.py` writes docs/_static/epsilon-light.svg and -dark.svg."""

from collections.abc import Iterator
from pathlib import Path

from accounting import Plan, budget
from accounting.mechanisms.adjacency import Adjacency
from accounting.rounding import upwards

ROUNDS = (1, 2, 4, 7, 11, 16, 25, 45, 70, 90, 110, 135, 160, 180)
CLIENTS, COHORT, NOISE = 6000, 100, 1.4
LEFT, RIGHT, TOP, BOTTOM = 30, 680, 70, 330
TALLEST = 3.5
THEMES = {
    "light": {"ink": "#1b1e23", "faint": "#596170", "rule": "#dfe3e8", "printed": "#c24e00", "true": "#0b5cad"},
    "dark": {"ink": "#e6e9ee", "faint": "#a2abb9", "rule": "#343b46", "printed": "#ff9354", "true": "#7db9ff"},
}


def curve(sampling: str, neighbours: str, **account: str) -> list[float]:
    plan = Plan(clients=CLIENTS, cohort=COHORT, sampling=sampling, adjacency=Adjacency(neighbours))
    return [budget.epsilon(plan, noise_multiplier=NOISE, rounds=rounds, **account) for rounds in ROUNDS]


def x(rounds: float) -> float:
    return LEFT + (RIGHT - LEFT) * rounds / ROUNDS[-1]


def y(epsilon: float) -> float:
    return BOTTOM - (BOTTOM - TOP) * epsilon / TALLEST


def text(
    at: tuple[float, float], words: str, colour: str, *, end: str = "start", size: int = 18, bold: bool = False
) -> str:
    weight = ' font-weight="600"' if bold else ""
    place = f'x="{at[0]:.0f}" y="{at[1]:.0f}" text-anchor="{end}"'
    return f'<text {place} font-size="{size}" fill="{colour}"{weight}>{words}</text>'


def line(epsilons: list[float], colour: str, dashes: str) -> str:
    points = " ".join(f"{x(rounds):.1f},{y(epsilon):.1f}" for rounds, epsilon in zip(ROUNDS, epsilons, strict=True))
    return f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="3"{dashes}/>'


def frame(theme: dict[str, str]) -> Iterator[str]:
    for tick in range(4):
        yield f'<path d="M{LEFT} {y(tick):.1f}H{RIGHT}" stroke="{theme["rule"]}"/>'
        yield text((LEFT - 10, y(tick) + 6), str(tick), theme["faint"], end="end")
    for rounds in (0, 60, 120, 180):
        yield text((x(rounds), BOTTOM + 24), str(rounds), theme["faint"], end="middle")
    yield text((x(90), BOTTOM + 48), "rounds of training", theme["faint"], end="middle")


def picture(theme: dict[str, str], printed: list[float], zeroed: list[float], replaced: list[float]) -> str:
    said = (
        f"epsilon after {ROUNDS[-1]} rounds: {upwards(printed[-1])} as printed; for what runs {upwards(zeroed[-1])} "
        f"(zero-out) and {upwards(replaced[-1])} (replace-one)"
    )
    parts = [
        text((0, 22), "One plan, three epsilons", theme["ink"], size=22, bold=True),
        text(
            (0, 48),
            f"epsilon over rounds: {CLIENTS:,} clients, {COHORT} a round, noise multiplier {NOISE}",
            theme["faint"],
        ),
        *frame(theme),
        line(printed, theme["printed"], ' stroke-dasharray="9 5"'),
        line(zeroed, theme["true"], ""),
        line(replaced, theme["true"], ""),
        text(
            (RIGHT - 150, y(3.2)),
            f"what runs, one client replaced: {upwards(replaced[-1])}",
            theme["true"],
            end="end",
            bold=True,
        ),
        text(
            (RIGHT, y(1.55)),
            f"what runs, one client left out: {upwards(zeroed[-1])}",
            theme["true"],
            end="end",
            bold=True,
        ),
        text(
            (RIGHT, y(0.45)),
            f"what is printed, for Poisson: {upwards(printed[-1])}",
            theme["printed"],
            end="end",
            bold=True,
        ),
    ]
    body = "\n".join(parts)
    return (
        '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 700 390" role="img" font-family="sans-serif">\n'
        f"<title>{said}</title>\n{body}\n</svg>\n"
    )


def main() -> None:
    folder = Path(__file__).parent / "_static"
    curves = (
        curve("poisson", "add-remove", accountant="rdp", conversion="classical"),
        curve("fixed", "zero-out"),
        curve("fixed", "replace-one"),
    )
    for name, theme in THEMES.items():
        (folder / f"epsilon-{name}.svg").write_text(picture(theme, *curves), encoding="utf-8")


if __name__ == "__main__":
    main()
