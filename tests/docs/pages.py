"""The Markdown files of the repository and their code blocks, as tests look at them."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from markdown_it import MarkdownIt
from markdown_it.token import Token

ROOT = Path(__file__).parents[2]
PAGES = [
    *sorted(ROOT.glob("*.md")),
    *sorted((ROOT / "docs").rglob("*.md")),
    *sorted((ROOT / "tests").glob("*/README.md")),
]


@dataclass(frozen=True)
class Block:
    """One code block. language: of its fence, "" without; line: where its text begins, from 1."""

    page: Path
    line: int
    language: str
    text: str

    def __str__(self) -> str:
        return f"{name(self.page)}:{self.line}"


def name(page: Path) -> str:
    return str(page.relative_to(ROOT))


@cache
def tokens(page: Path) -> list[Token]:
    return MarkdownIt("commonmark").enable("table").parse(page.read_text(encoding="utf-8"))


@cache
def blocks(page: Path) -> list[Block]:
    """Fenced and indented code blocks, in their order."""
    found = []
    for token in tokens(page):
        if token.type in ("fence", "code_block") and token.map is not None:
            fenced = token.type == "fence"
            language = token.info.split(" ")[0] if fenced else ""
            found.append(Block(page, token.map[0] + 1 + fenced, language, token.content))
    return found


def inline(page: Path) -> Iterator[Token]:
    """Every piece of inline text, code and link of a page."""
    for token in tokens(page):
        yield from token.children or ()


@cache
def anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, as the site and the usual viewers of Markdown make them."""
    found: set[str] = set()
    headings = tokens(page)
    for opened, content in itertools.pairwise(headings):
        if opened.type == "heading_open":
            text = "".join(t.content for t in content.children or () if t.type in ("text", "code_inline"))
            slug = re.sub(r"[^\w\s-]", "", text).strip().lower()
            slug = re.sub(r"[\s]", "-", slug)
            found.add(slug if slug not in found else f"{slug}_1")
    return found


ALL_BLOCKS = [block for page in PAGES for block in blocks(page)]
