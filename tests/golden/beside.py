"""Old beside new: every number of the golden net of two commits, in full, on this machine.

    make golden BESIDE=COMMIT [WORDS="WORD ..."]

Each commit is checked out in a git worktree and runs its own golden net in a process of its own, with one thread, so
that a redesign of the code the net looks at is no difference. Answers are compared bit by bit, training included. For
redesigns that claim to change nothing: the stored tolerances would leave room for the last bits.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from golden.record import COMMAND, ROOT, environment_of


def answers_in(tree: Path, words: list[str], out: Path) -> subprocess.Popen[bytes]:
    """Start the golden net of a tree; its answers are written to `out`."""
    record = tree / "tests" / "golden" / "record.py"
    if "--answers" not in record.read_text():
        sys.exit(f"{record}: has no option --answers; the golden net of this commit cannot be compared in full.")
    return subprocess.Popen([*COMMAND, "--answers", str(out), *words], env=environment_of(tree), cwd=tree)


def bitwise_differences(before: Any, now: Any, path: str = "") -> list[str]:
    """Return one line for each value that is not equal in all its digits."""
    if isinstance(before, dict) and isinstance(now, dict):
        if "bits" in before and "bits" in now:
            return [] if before["bits"] == now["bits"] else [f"{path}: {before['about']} -> {now['about']}"]
        keys = sorted({*before, *now})
        return [line for key in keys for line in bitwise_differences(before.get(key), now.get(key), f"{path}.{key}")]
    return [] if before == now else [f"{path}: {str(before)[:300]} -> {str(now)[:300]}"]


def main(commit: str, words: list[str]) -> int:
    git = ["git", "-C", str(ROOT)]
    with tempfile.TemporaryDirectory() as home:
        tree, outs = Path(home) / "before", (Path(home) / "before.jsonl", Path(home) / "now.jsonl")
        subprocess.run([*git, "worktree", "add", "--quiet", "--detach", str(tree), commit], check=True)
        try:
            running = [answers_in(place, words, out) for place, out in zip((tree, ROOT), outs, strict=True)]
            if sum(process.wait() != 0 for process in running):
                return 1
            before, now = (dict(json.loads(line) for line in out.read_text().splitlines()) for out in outs)
        finally:
            subprocess.run([*git, "worktree", "remove", "--force", str(tree)], check=True)
    found = [f"{name}{line}" for name in before if name in now for line in bitwise_differences(before[name], now[name])]
    found += [f"{name}: in one of the two only" for name in sorted(before.keys() ^ now.keys())]
    print(*found, f"{len(found)} differences in {len(before.keys() & now.keys())} settings", sep="\n")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2:]))
