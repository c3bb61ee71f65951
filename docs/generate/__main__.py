"""``python -m docs.generate``: write docs/reference anew from the code."""

from __future__ import annotations

from docs.generate.pages import PAGES, ROOT


def main() -> None:
    """Write each page whose text has changed, and name it."""
    for name, make in PAGES.items():
        path, text = ROOT / "docs" / name, make()
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
            print(f"written: docs/{name}")  # noqa: T201 - a command's own words


if __name__ == "__main__":
    main()
