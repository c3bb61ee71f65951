"""The server's command, flag by flag, against the source of the argument parser of its SGLang."""

from __future__ import annotations

import ast
import itertools
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml

from tests.deploy.test_compose import ROOT, SERVICES, expanded
from tests.runners.wheels.fetch import release

pytestmark = pytest.mark.wheels

CONTROL = yaml.safe_load((ROOT / "deploy" / "sglang" / "control.yaml").read_text(encoding="utf-8"))
IMAGES = [
    SERVICES["sglang"]["build"]["args"]["SGLANG_IMAGE"],
    CONTROL["services"]["sglang"]["build"]["args"]["SGLANG_IMAGE"],
]
WORDS = [expanded(word) for word in SERVICES["sglang"]["command"]]


@dataclass(frozen=True)
class Flag:
    """type: int, float, bool or str; choices: empty where any value will do."""

    type: str
    choices: tuple[str, ...] = ()


def flags(version: str) -> dict[str, Flag]:
    """Every flag of a release: fields written ``name: A[type, help or Arg(...)]``, and explicit ones."""
    found: dict[str, Flag] = {}
    for path in sorted((release(version) / "sglang" / "srt").rglob("*.py")):
        if path.name == "server_args.py" or path.parent.name == "fields":
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                found |= dict(_of(node))
    return found


def _of(node: ast.AST) -> Iterator[tuple[str, Flag]]:
    match node:
        case ast.Call(func=ast.Attribute(attr="add_argument"), args=names):
            for name in names:
                if isinstance(name, ast.Constant) and str(name.value).startswith("--"):
                    yield str(name.value), Flag("str")
        case ast.AnnAssign(
            target=ast.Name(id=field),
            annotation=ast.Subscript(value=ast.Name(id="A"), slice=ast.Tuple(elts=[kind, meta, *_])),
        ):
            given = {k.arg: k.value for k in meta.keywords} if isinstance(meta, ast.Call) else {}
            if "no_cli" in given:
                return
            words = [
                n.value for n in ast.walk(kind) if isinstance(n, ast.Constant) and isinstance(n.value, str)
            ]
            if isinstance(given.get("choices"), ast.List):
                words = [str(value) for value in ast.literal_eval(given["choices"])]
            types = {n.id for n in ast.walk(kind) if isinstance(n, ast.Name)} & {"int", "float", "bool"}
            flag = Flag(types.pop() if types and "type_parser" not in given else "str", tuple(words))
            cli_name = given.get("cli_name")
            main = ast.literal_eval(cli_name) if cli_name else "--" + field.replace("_", "-")
            for one in (main, *ast.literal_eval(given.get("aliases", ast.List([])))):
                yield one, flag


@pytest.mark.parametrize("image", IMAGES, ids=["shipped", "control"])
def test_every_flag_of_the_command_is_one_that_the_release_takes(image: str) -> None:
    pinned = re.search(r":v(\d[\w.]*)$", expanded(image))
    assert pinned, "the image is pinned to a release"
    known = flags(pinned[1])
    assert len(known) > 300 and known["--page-size"] == Flag("int"), "the source was read"
    assert WORDS[:3] == ["python3", "-m", "sglang.launch_server"]
    rest = WORDS[3:]
    seen = set()
    while rest:
        name = rest.pop(0)
        assert name in known, f"{pinned[1]} takes no {name}"
        seen.add(name)
        flag = known[name]
        if flag.type == "bool":
            continue
        value = rest.pop(0)
        assert not value.startswith("--"), f"{name} wants a value"
        if flag.type in ("int", "float"):
            float(value)
        assert not flag.choices or value in flag.choices, f"{name} takes one of {flag.choices}"
    assert seen >= {
        *("--model-path", "--tp-size", "--enable-metrics", "--mamba-radix-cache-strategy"),
        *("--chunked-prefill-size", "--cuda-graph-backend-prefill", "--cuda-graph-backend-decode"),
    }
    # What the entry point adds, and what .env.example proposes.
    assert {"--config", "--api-key", "--context-length", "--enable-hierarchical-cache"} <= set(known)


def test_what_matters_is_on_and_can_be_changed() -> None:
    said = dict(itertools.pairwise(WORDS))
    assert said["--tp-size"] == "4" and said["--mamba-radix-cache-strategy"] == "extra_buffer"
    assert said["--cuda-graph-backend-prefill"] != "disabled" != said["--cuda-graph-backend-decode"]
    raw = SERVICES["sglang"]["command"]
    fixed = {"--host", "--port", "--enable-metrics"}
    for name, value in itertools.pairwise(raw):
        if name.startswith("--") and name not in fixed:
            assert re.fullmatch(r"\$\{SGLANG_\w+:-[^}]+\}", value), f"{name} can be set from the environment"


def test_the_pinned_release_is_the_one_that_is_documented() -> None:
    page = (Path(ROOT) / "docs" / "server-image.md").read_text(encoding="utf-8")
    pinned = re.search(r":v(\d[\w.]*)$", expanded(IMAGES[0]))
    assert pinned and f"take {pinned[1]}." in page
