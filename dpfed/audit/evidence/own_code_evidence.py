"""Is the code of the user's own that is loaded here the code that the run was made with?"""

from __future__ import annotations

from pathlib import Path

from dpfed.audit.evidence.run_files import RunFiles
from dpfed.audit.evidence.run_lines import Unavailable
from dpfed.config.own_code import code_hash
from dpfed.errors import ConfigError
from dpfed.run.experiment import own_code_of

Finding = tuple[bool | None, str]


def require_own_code(files: RunFiles) -> None:
    """ConfigError that names the files, where the run needs code of the user's own and what it registers is not
    known here."""
    try:
        own_code_of(files.config)
    except ConfigError as error:
        if not files.own_code:
            raise
        words = " ".join(f"--load {one.path}" for one in files.own_code)
        raise ConfigError(f"{files.path}: the run was made with code of its user's own ({words}): {error}") from None


def loaded_here(files: RunFiles) -> bool:
    """True if each file that the run needed is loaded here, in this or another version."""
    here = own_code_of(files.config)
    known = {one.sha256 for one in here} | {Path(one.path).name for one in here}
    return all(one.sha256 in known or Path(one.path).name in known for one in files.own_code)


def own_code_is_what_ran(files: RunFiles) -> Finding:
    """Claim checked: what is loaded here has the hash that own_code.json and the ledger's header have. Could not tell
    where another version is loaded: what that says of the method is not said of the run."""
    header = files.trusted_ledger.header
    if header.binding is None:
        raise Unavailable("ledger.jsonl: names no run. It was made by a version that did not.")
    recorded = code_hash(files.own_code)
    if header.binding.get("own_code", "") != recorded:
        return False, "own_code.json is not the code in the ledger's header."
    if any(not one.sha256 for one in files.own_code):
        return None, "some of it was typed in a session, and is in no file."
    if not loaded_here(files):
        words = " ".join(f"--load {one.path}" for one in files.own_code)
        return None, f"its own code is not loaded here. Give {words}. The other checks are made without that code."
    if code_hash(own_code_of(files.config)) != recorded:
        names = ", ".join(f"{one.path} ({one.sha256[:12]})" for one in files.own_code)
        return None, f"another version is loaded here than ran, which was {names}. Load that one (--load)."
    return True, f"{len(files.own_code)} files of the user's own, as they ran."
