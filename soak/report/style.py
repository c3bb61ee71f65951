"""The looks of the report: one sheet for light, dark and paper, and the few lines that copy a command.

Nothing is fetched from anywhere, and nothing runs but this script, whose digest the page names.
"""

from __future__ import annotations

import base64
import hashlib

CSS = """
:root {
  color-scheme: light dark;
  --ink: #1a1f26; --faint: #6a727d; --grid: #e6e8ec; --paper: #ffffff; --card: #f6f7f9; --line: #d9dde3;
  --probe: #0b63b5; --control: #6f7782; --alarm: #c02626; --second: #9a5300; --good: #1d7a3c; --link: #0b63b5;
}
@media (prefers-color-scheme: dark) {
  :root {
    --ink: #e7eaee; --faint: #98a1ad; --grid: #2b3139; --paper: #14181d; --card: #1c2128; --line: #343b45;
    --probe: #6db5ff; --control: #a3abb6; --alarm: #ff7b72; --second: #ffb35c; --good: #5fd38a;
    --link: #6db5ff;
  }
}
* { box-sizing: border-box; }
body {
  margin: 0 auto; max-width: 62rem; padding: 1.5rem 1.25rem 4rem; background: var(--paper); color: var(--ink);
  font: 16px/1.5 system-ui, -apple-system, "Segoe UI", "DejaVu Sans", sans-serif;
}
h1 { font-size: 1.15rem; font-weight: 600; margin: 0 0 .75rem; color: var(--faint); }
h2 { font-size: 1.25rem; margin: 2.6rem 0 .35rem; border-top: 1px solid var(--line); padding-top: 1.1rem; }
h3 { font-size: 1.02rem; margin: 1.6rem 0 .3rem; }
p { margin: .4rem 0; max-width: 52rem; overflow-wrap: anywhere; }
a { color: var(--link); }
.verdict { border: 1px solid var(--line); border-left: .5rem solid var(--faint); border-radius: .3rem;
  padding: .9rem 1.1rem; background: var(--card); }
.verdict p { margin: 0; font-size: 1.15rem; }
.verdict b { letter-spacing: .02em; }
.CORRUPT { border-left-color: var(--alarm); } .CORRUPT b { color: var(--alarm); }
.SUSPECT, .VACUOUS { border-left-color: var(--second); } .SUSPECT b, .VACUOUS b { color: var(--second); }
.CLEAN { border-left-color: var(--good); } .CLEAN b { color: var(--good); }
.CALIBRATING { border-left-color: var(--probe); }
.notice { border: 1px solid var(--second); border-radius: .3rem; padding: .5rem .9rem; margin: .8rem 0; }
ul { padding-left: 1.2rem; margin: .5rem 0; } li { overflow-wrap: anywhere; margin: .15rem 0; }
.answer { font-weight: 600; }
.note, figcaption { color: var(--faint); font-size: .9rem; }
.plot { overflow-x: auto; margin: .6rem 0; }
.plot svg { display: block; width: 100%; height: auto; min-width: 34rem; }
.plot svg * { stroke-linejoin: round; stroke-linecap: butt; }
.plot svg text { font-family: system-ui, -apple-system, "Segoe UI", "DejaVu Sans", sans-serif !important; }
.wide { overflow-x: auto; margin: .5rem 0; }
table { border-collapse: collapse; font-size: .92rem; font-variant-numeric: tabular-nums; }
th, td { text-align: left; padding: .22rem .9rem .22rem 0; border-bottom: 1px solid var(--grid);
  vertical-align: top; overflow-wrap: break-word; max-width: 32rem; }
th { font-weight: 600; color: var(--faint); } .n { text-align: right; white-space: nowrap; }
dl { display: grid; grid-template-columns: minmax(9rem, max-content) 1fr; gap: .15rem 1.2rem; margin: .6rem 0;
  font-size: .95rem; }
dt { color: var(--faint); } dd { margin: 0; overflow-wrap: anywhere; }
details { margin: .4rem 0; } summary { cursor: pointer; color: var(--link); font-size: .92rem; }
pre, code { font-family: ui-monospace, "SF Mono", "DejaVu Sans Mono", monospace; font-size: .85rem; }
pre { overflow-x: auto; background: var(--card); border: 1px solid var(--line); border-radius: .3rem;
  padding: .7rem .9rem; line-height: 1.3; }
.cmd { display: flex; gap: .6rem; align-items: flex-start; margin: .5rem 0; }
.cmd code { flex: 1; background: var(--card); border: 1px solid var(--line); border-radius: .3rem;
  padding: .45rem .7rem; overflow-wrap: anywhere; white-space: pre-wrap; user-select: all; }
button { font: inherit; font-size: .85rem; padding: .35rem .8rem; border: 1px solid var(--line);
  border-radius: .3rem; background: var(--card); color: var(--ink); cursor: pointer; }
:focus-visible { outline: 2px solid var(--link); outline-offset: 2px; }
.yes::before { content: "\\25CF\\00A0"; color: var(--good); }
.no::before { content: "\\25CB\\00A0"; color: var(--second); }
.na::before { content: "\\2013\\00A0"; color: var(--faint); }
@media (max-width: 40rem) {
  dl { grid-template-columns: 1fr; gap: 0; } dd { margin-bottom: .4rem; }
  .wide table { min-width: 38rem; }
}
@media print {
  :root {
    color-scheme: light;
    --ink: #000; --faint: #444; --grid: #ddd; --paper: #fff; --card: #fff; --line: #bbb;
    --probe: #0b63b5; --control: #666; --alarm: #b00; --second: #7a4200; --good: #14602e; --link: #000;
  }
  body { max-width: none; padding: 0; font-size: 10.5pt; }
  button, nav { display: none; }
  .plot, .cmd, tr, .verdict { break-inside: avoid; }
  h2, h3 { break-after: avoid; }
  .plot svg { min-width: 0; }
  .plot, .wide { overflow: visible; }
  table { font-size: .8em; } th, td { padding-right: .5rem; } .n { white-space: normal; }
  pre { white-space: pre-wrap; }
  @page { margin: 16mm; }
}
"""

JS = """
for (const box of document.querySelectorAll(".cmd")) {
  const button = box.querySelector("button");
  button.hidden = false;
  button.addEventListener("click", async () => {
    const words = box.querySelector("code");
    try {
      await navigator.clipboard.writeText(words.textContent);
      button.textContent = "Copied";
    } catch (refused) {
      getSelection().selectAllChildren(words);
      button.textContent = "Selected: Ctrl+C";
    }
    setTimeout(() => { button.textContent = "Copy"; }, 2500);
  });
}
"""


def policy() -> str:
    """The page's content security policy: its own styles and this script, and nothing from anywhere."""
    digest = base64.b64encode(hashlib.sha256(JS.encode()).digest()).decode()
    return f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{digest}'"
