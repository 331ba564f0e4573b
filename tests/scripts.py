"""Scripts of the repository that are no modules of a package, loaded for tests."""

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

ROOT = Path(__file__).parents[1]


def script(place: str) -> ModuleType:
    """Return the module of the script at this place in the repository, such as "docs/claims.py"."""
    spec = importlib.util.spec_from_file_location(place.replace("/", "_").removesuffix(".py"), ROOT / place)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # its dataclasses look it up
    spec.loader.exec_module(module)
    return module
