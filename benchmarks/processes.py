"""Memory of a process and its descendants."""

from pathlib import Path


def megabytes(root: int) -> float:
    """Return the memory in units of 2^20 bytes; shared memory counts once (Linux only)."""
    parents: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
            except OSError:
                continue
            parents.setdefault(parent, []).append(int(entry.name))
    total, waiting = 0, [root]
    while waiting:
        one = waiting.pop()
        waiting += parents.get(one, [])
        try:
            lines = Path(f"/proc/{one}/smaps_rollup").read_text().splitlines()
        except OSError:
            continue
        total += sum(int(line.split()[1]) for line in lines if line.startswith("Pss:"))
    return total / 1024
