"""Metadata of a build: README with absolute links and project URLs, from the address that DPFED_REPOSITORY names.

    DPFED_REPOSITORY=https://github.com/OWNER/NAME python -m build

PyPI resolves no relative links. Without the variable, links stay as they are and there are no URLs.
"""

import os
import re
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

_RELATIVE = re.compile(r"(!?\[[^\]]*\]\()(?![a-z]+:|#)([^)\s]+)(\))")


def absolute(text: str, address: str, version: str) -> str:
    """Return Markdown whose relative links are addresses of files of this version's tag."""

    def changed(link: re.Match[str]) -> str:
        kind = "raw" if link[1].startswith("!") else "blob"
        return f"{link[1]}{address}/{kind}/v{version}/{link[2]}{link[3]}"

    return _RELATIVE.sub(changed, text)


class CustomMetadataHook(MetadataHookInterface):
    """README and URLs of [project]."""

    def update(self, metadata: dict[str, Any]) -> None:
        """Set `readme` and, if the address is known, `urls`."""
        readme = (Path(self.root) / "README.md").read_text(encoding="utf-8")
        address = os.environ.get("DPFED_REPOSITORY", "").rstrip("/")
        if address:
            metadata["urls"] = {
                "Source": address,
                "Issues": f"{address}/issues",
                "Changelog": f"{address}/blob/main/CHANGELOG.md",
                "Security": f"{address}/security/policy",
            }
            version = re.search(r'__version__ = "(.+)"', (Path(self.root) / "dpfed" / "version.py").read_text())
            assert version is not None
            readme = absolute(readme, address, version[1])
        metadata["readme"] = {"content-type": "text/markdown", "text": readme}
