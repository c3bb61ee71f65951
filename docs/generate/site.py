"""What mkdocs calls while it builds the site: links that leave docs/ name a file of the repository.

Such a link works where the page is read in a checkout, and has nowhere to lead to on a site. It becomes the
file's name there. A link to nothing stops the build.
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path
from typing import Any

from mkdocs.exceptions import PluginError

ROOT = Path(__file__).resolve().parents[2]
_LINK = re.compile(r"\[(?P<text>[^\]]+)\]\((?P<to>(?:\.\./)+[^)#\s]*)(?:#[^)]*)?\)")


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """mkdocs hands in each page's text. Raises PluginError for a link to what is not there."""
    folder = posixpath.dirname(posixpath.join("docs", page.file.src_uri))

    def outside(link: re.Match[str]) -> str:
        path = posixpath.normpath(posixpath.join(folder, link["to"]))
        if path.startswith("docs/"):
            return link[0]
        if not (ROOT / path).exists():
            raise PluginError(f"{page.file.src_uri}: [{link['text']}]({link['to']}) leads to nothing")
        return f"{link['text']} (`{path}`)" if path != link["text"].strip("`") else f"`{path}`"

    return _LINK.sub(outside, markdown)
