"""The command line.

Exit status: 0 success; 1 the work failed or an audit says "fail"; 2 wrong usage or input; 3 an audit of uploads stopped
before its end.

With --json, standard output is one JSON document and nothing else; progress and messages go to standard error.
"""

import errno
import os
import re
import sys
from collections.abc import Sequence

from cyclopts import App, CycloptsError

from accounting.errors import AccountingError, ContradictoryBounds, LedgerError
from dpfed.config.own_code import restore_named_files
from dpfed.errors import DpfedError, RunError, RunInterrupted
from dpfed.version import __version__

_LONGEST_MESSAGE = 2000
COMMANDS = {
    "budget": "Epsilon, noise multiplier or rounds: give two of the three, get the third.",
    "explain": "Explain what settings of Flower, FLIP, NVFlare, Opacus, TFF, pfl or jax_privacy promise.",
    "plan": "Serve a page with sliders for epsilon, noise and rounds: curve, map, what-if, and the equivalent command.",
    "run": "Run a federated experiment; the run folder receives the ledger, the metrics, the model and a report.",
    "sweep": "Run all rows of a table or figure at every point of their axes, in parallel, in one run folder each.",
    "report": "Write an HTML page that compares runs with published numbers, figures as PNG and PDF, and CSV tables.",
    "diagnose": "Find why a run does not learn: noise, clip norm, learning rate or budget, and the key to change.",
    "watch": "Serve a live page of a run in progress; Ctrl-C stops the page, not the run.",
    "methods": "List the methods of `dpfed run` with upload, bits per parameter, bias, linearity and private variants.",
    "config": "Print the keys of a configuration: type, default, meaning, and the methods that take them.",
    "deploy": "Write a Flower app that runs a configuration on real nodes; docs/deploy.md says how to start them.",
    "verify": "Recompute a published run's epsilon and check its ledger, numbers and sentence, by two implementations.",
    "cite": "Print the BibTeX of dpfed and of the method, account and data that a run used.",
    "ledger": "Share one privacy budget among runs on the same clients, also concurrent ones; check and sign ledgers.",
    "audit": "Test privacy claims against the code that runs. Exit status 1 if an audit fails.",
}
"""One-line summaries of the commands; a command's module has its name and is imported when the command is called."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Run one command and exit the process with its exit status."""
    sys.exit(status(sys.argv[1:] if arguments is None else list(arguments)))


def status(arguments: Sequence[str]) -> int:
    """Run one command and return its exit status; print every expected failure as one message on standard error."""
    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w")  # noqa: SIM115
    if sys.stdout is None:
        return _print_error("standard output is closed. Open it, or redirect it to /dev/null.", 1)
    try:
        with restore_named_files():
            result = app_of(arguments)(arguments, exit_on_error=False, print_error=False, result_action="return_value")
        sys.stdout.flush()
    except CycloptsError as error:
        return _print_error(_shortened_message(_with_key_hint(str(error), arguments)), 2)
    except RunInterrupted as error:
        return _print_error(str(error), 128 + error.signal)
    except (RunError, LedgerError, ContradictoryBounds) as error:
        stopped = isinstance(error, RunError) and list(arguments[:1]) == ["audit"]
        return _print_error(str(error), 3 if stopped else 1)
    except (DpfedError, AccountingError) as error:
        return _print_error(str(error), 2)
    except RecursionError:
        return _print_error("a file or a setting is nested too deeply to be read. Use fewer levels.", 2)
    except KeyboardInterrupt:
        return _print_error("interrupted.", 130)
    except BrokenPipeError:  # the reader of the pipe has closed it, as in `| head`
        sys.stderr.close()
        return 1
    except OSError as error:
        if error.filename is not None or error.errno not in (errno.ENOSPC, errno.EIO, errno.EBADF, errno.EDQUOT):
            raise
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115  (writing the rest of the output would fail, too)
        return _print_error(f"standard output cannot be written ({error.strerror}). Redirect it to another file.", 1)
    return result if isinstance(result, int) else 0


def app_of(arguments: Sequence[str]) -> App:
    """Return the command-line application; a command's module is imported when the command is called.

    The list of all commands shows `COMMANDS`; the help page of a command in `arguments` shows its whole docstring.
    """
    app = App(
        name="dpfed",
        version=__version__,
        version_format="plaintext",
        help="Budget, run and audit differentially private federated learning with compressed uploads.",
    )
    for name, summary in COMMANDS.items():
        app.command(f"dpfed.cli.{name}:{name}", name=name, help=None if name in arguments else summary)
    app.register_install_completion_command()
    return app


def _with_key_hint(message: str, arguments: Sequence[str]) -> str:
    """Return the message; for an unknown option of `dpfed run` or `sweep`, name the configuration key of that name."""
    found = re.match(r"Unknown option: --([a-z-]+)", message)
    if found is None or arguments[0] not in ("run", "sweep"):
        return message
    from dpfed.config.tables import all_tables, names_of_keys

    wanted = found[1].replace("-", "_")
    keys = [f"{name}.{key}" for name, tables in all_tables() for key in names_of_keys(tables) if name and key == wanted]
    if not keys:
        return message
    return f"{found[0]}. A setting is given as {' or '.join(f'--set {key}=VALUE' for key in keys)}."


def _shortened_message(message: str) -> str:
    """Return the message, shortened in the middle if it is very long."""
    return message if len(message) <= _LONGEST_MESSAGE else f"{message[: _LONGEST_MESSAGE - 200]} ... {message[-200:]}"


def _print_error(message: str, code: int) -> int:
    print(f"dpfed: {message}", file=sys.stderr)
    return code
