"""What a server does with the released mean, by name: server.rule; one's own are registered."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from dpfed.config import registered
from dpfed.config.did_you_mean import did_you_mean
from dpfed.config.own_code import words_of
from dpfed.errors import ConfigError, DpfedError
from dpfed.server.state import ServerRule

RULES = ("step", "adam", "yogi", "adagrad", "posterior")
"""Those that come with dpfed."""

MakesRule = Callable[..., ServerRule]
Given = TypeVar("Given", bound=MakesRule)


def register(name: str) -> Callable[[Given], Given]:
    """A decorator: the function, or the class, is from now on server.rule `name` of this process.

    It is called with learning_rate and momentum (server.learning_rate, server.momentum) and gives a
    `dpfed.server.state.ServerRule`: state and mean update in, the next state out, with `round` one higher; what it
    remembers is in `state.memory`, nowhere else, so that a run can go on. It sees released numbers alone, so whatever
    it does is post-processing. ConfigError for a name that is taken.
    """

    def known(makes: Given) -> Given:
        if not callable(makes):
            raise ConfigError(f"server rule {name!r}: is {type(makes).__name__}; must be a function that makes a rule.")
        registered.add("server rule", name, makes, taken=RULES)
        return makes

    return known


def check_name(name: str) -> None:
    """ConfigError with the nearest name unless there is such a rule."""
    known = (*RULES, *registered.own("server rule"))
    if name not in known:
        raise ConfigError(
            f"server.rule={name!r}: known are {', '.join(known)}.{did_you_mean(name, known)} "
            "One's own are in a file that --load names."
        )


def own_rule(name: str, *, learning_rate: float, momentum: float) -> ServerRule | None:
    """The rule of this name, if it is one's own; ConfigError, with its line, where it cannot be made."""
    makes = registered.own("server rule").get(name)
    if makes is None:
        return None
    try:
        made: ServerRule = makes(learning_rate=learning_rate, momentum=momentum)
    except DpfedError:
        raise
    except Exception as error:  # the rule is the user's: it may raise anything
        raise ConfigError(f"server.rule={name!r}: cannot be made: {words_of(error)}.") from error
    if not callable(getattr(made, "step", None)):
        raise ConfigError(
            f"server.rule={name!r}: gives {type(made).__name__}, which has no step(state, mean, *, count)."
        )
    return made
