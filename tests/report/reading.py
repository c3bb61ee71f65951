"""A report as a browser would take it apart: tags in order, text, attributes; anything odd is an error."""

from __future__ import annotations

from html.parser import HTMLParser

VOID = {"meta", "br", "hr"}


class Page(HTMLParser):
    """Elements as (tag, attributes); ``unbalanced`` names what was not closed as it was opened."""

    def __init__(self, markup: str) -> None:
        super().__init__(convert_charrefs=True)
        self.elements: list[tuple[str, dict[str, str]]] = []
        self.words: list[str] = []
        self.scripts: list[str] = []
        self.unbalanced: list[str] = []
        self._open: list[str] = []
        self.feed(markup)
        self.close()
        self.unbalanced += self._open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, {name: value or "" for name, value in attrs}))
        if tag not in VOID:
            self._open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, {name: value or "" for name, value in attrs}))

    def handle_endtag(self, tag: str) -> None:
        if not self._open or self._open.pop() != tag:
            self.unbalanced.append(f"/{tag}")

    def handle_data(self, data: str) -> None:
        (self.scripts if self._open and self._open[-1] == "script" else self.words).append(data)

    def count(self, tag: str) -> int:
        """How many of an element there are."""
        return sum(name == tag for name, _ in self.elements)

    @property
    def text(self) -> str:
        """All words, without those of scripts."""
        return " ".join(self.words)
