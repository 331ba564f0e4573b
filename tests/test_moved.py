"""docs/moved.md: what it calls new is there, what it calls old is not."""

import re
from pathlib import Path

ROOT = Path(__file__).parent.parent
ROW = re.compile(r"^\| `((?:accounting|dpfed)[\w.]*)` \| `([\w.]+)` \| (.+) \|$", re.MULTILINE)


def is_there(folder: str, name: str) -> bool:
    return (ROOT / folder.replace(".", "/") / f"{name}.py").is_file()


def test_modules_are_where_the_page_says():
    rows = ROW.findall((ROOT / "docs" / "moved.md").read_text())
    assert len(rows) > 20
    for new_folder, old_folder, modules in rows:
        for module in modules.split(", "):
            names = re.findall(r"`(\w+)`", module)
            assert is_there(new_folder, names[-1]), (new_folder, module)
            assert not is_there(old_folder, names[0]), (old_folder, module)
