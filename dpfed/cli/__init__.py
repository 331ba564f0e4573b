"""The command line. Exit status: 0 done; 1 the work failed or an audit says "fail"; 2 wrong usage or input; 3 an audit
of uploads did not come to its end.

With --json, standard output is one JSON document and nothing else; progress and messages go to standard error.
"""

import re
import sys
from collections.abc import Sequence

from cyclopts import App, CycloptsError

from accounting.errors import AccountingError, ContradictoryBounds, LedgerError
from dpfed.cli.audit import audit
from dpfed.cli.budget import budget
from dpfed.cli.config import config
from dpfed.cli.deploy import deploy
from dpfed.cli.diagnose import diagnose
from dpfed.cli.ledger import ledger
from dpfed.cli.methods import methods
from dpfed.cli.plan import plan
from dpfed.cli.report import report
from dpfed.cli.run import run
from dpfed.cli.sweep import sweep
from dpfed.cli.watch import watch
from dpfed.config.own_code import as_before
from dpfed.errors import DpfedError, RunError, RunInterrupted
from dpfed.version import __version__

_LONGEST = 2000
app = App(
    name="dpfed",
    version=__version__,
    help="Budget, run and audit differentially private federated learning with compressed uploads.",
)
app.command(budget)
app.command(plan)
app.command(run)
app.command(sweep)
app.command(report)
app.command(diagnose)
app.command(watch)
app.command(methods)
app.command(config)
app.command(deploy)
app.command(ledger)
app.command(audit)
app.register_install_completion_command()


def main(arguments: Sequence[str] | None = None) -> None:
    """Run one command and leave the process with its exit status."""
    sys.exit(status(sys.argv[1:] if arguments is None else list(arguments)))


def status(arguments: Sequence[str]) -> int:
    """Run one command and return its exit status; every expected failure is one message on standard error."""
    try:
        with as_before():
            result = app(arguments, exit_on_error=False, print_error=False, result_action="return_value")
    except CycloptsError as error:
        return _complain(_beginning(_with_setting(str(error), arguments)), 2)
    except RunInterrupted as error:
        return _complain(str(error), 128 + error.signal)
    except (RunError, LedgerError, ContradictoryBounds) as error:
        return _complain(str(error), 3 if list(arguments[:2]) == ["audit", "upload"] else 1)
    except (DpfedError, AccountingError) as error:
        return _complain(str(error), 2)
    except KeyboardInterrupt:
        return _complain("interrupted.", 130)
    except BrokenPipeError:  # the reader of our output has gone, as with `| head`
        sys.stderr.close()
        return 1
    return result if isinstance(result, int) else 0


def _with_setting(message: str, arguments: Sequence[str]) -> str:
    """Add the key of the configuration that an unknown option of a run may mean."""
    found = re.match(r"Unknown option: --([a-z-]+)", message)
    if found is None or arguments[0] not in ("run", "sweep"):
        return message
    from dpfed.config.tables import names_of_keys, sections

    wanted = found[1].replace("-", "_")
    keys = [f"{name}.{key}" for name, tables in sections() for key in names_of_keys(tables) if name and key == wanted]
    if not keys:
        return message
    return f"{found[0]}. A setting is given as {' or '.join(f'--set {key}=VALUE' for key in keys)}."


def _beginning(message: str) -> str:
    """Return the message, shortened in the middle if it is very long."""
    return message if len(message) <= _LONGEST else f"{message[: _LONGEST - 200]} ... {message[-200:]}"


def _complain(message: str, code: int) -> int:
    print(f"dpfed: {message}", file=sys.stderr)
    return code
