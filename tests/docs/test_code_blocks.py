"""What the documentation shows can be typed: commands parse, YAML holds known keys, Python compiles."""

from __future__ import annotations

import itertools
import json
import re
import shlex
from collections.abc import Iterator

import click
import pytest
import yaml

from soak import config
from soak.cli import main
from tests.docs.pages import ALL_BLOCKS, PAGES, Block, inline, name

SHELL = ("", "sh", "bash", "console")
_SOAK = re.compile(r"^(?:\$ )?(?:[A-Z_]+=\S* )*(?:\S*/)?soak(?= |$)")
_ASSIGNMENT = re.compile(r"[A-Z_]+=.*")
_YAML = re.compile(r"\A(?:#.*\n)*[a-z_]+:(?: |\n)")
_REDIRECTION = re.compile(r"(?<=\s)\d?(?:[<>]&\d|[<>]{1,2}\s*\S+)")
SECTIONS = set(config.Config.model_fields)


def parse(words: list[str]) -> None:
    """Have click read a command line as far as options go. Raises click.UsageError."""
    command: click.Command = main
    context = click.Context(main, info_name="soak")
    while isinstance(command, click.Group):
        ahead = [word for word in words if not word.startswith("-")]
        if not ahead:
            break
        parser = command.make_parser(context)
        parser.ignore_unknown_options = False
        _, rest, _ = parser.parse_args(list(words))
        if not rest or rest[0] == "COMMAND":
            return
        below = command.get_command(context, rest[0])
        if below is None:
            raise click.UsageError(f"no such command: {rest[0]}")
        command, words = below, rest[1:]
        context = click.Context(command, parent=context, info_name=rest[0])
    values, _, order = command.make_parser(context).parse_args(list(words))
    for parameter in order:
        given = values.get(parameter.name or "")
        if isinstance(parameter.type, click.Choice | click.IntRange) and isinstance(given, str):
            parameter.type_cast_value(context, given)


def simple_commands(line: str) -> Iterator[list[str]]:
    """The commands of a shell line, each as its words, without redirections and comments."""
    lexer = shlex.shlex(_REDIRECTION.sub(" ", line), posix=True, punctuation_chars="|&;()")
    lexer.whitespace_split = True
    words: list[str] = []
    for word in lexer:
        if set(word) <= set("|&;()"):
            yield words
            words = []
        else:
            words.append(word)
    yield words


def soak_lines(text: str) -> Iterator[str]:
    for line in re.sub(r"\\\n\s*", " ", text).splitlines():
        stripped = line.strip().removeprefix("$ ")
        if "soak " in stripped and not stripped.startswith("#"):
            yield stripped


def commands_of(text: str) -> Iterator[list[str]]:
    for line in soak_lines(text):
        for inner in re.findall(r"\$\((.*?)\)", line):
            yield from commands_of(inner)
        for words in simple_commands(re.sub(r"\$\((.*?)\)", "VALUE", line)):
            called = list(itertools.dropwhile(_ASSIGNMENT.fullmatch, words))
            if called and (called[0] == "soak" or called[0].endswith("/soak")):
                yield called[1:]


SHELL_BLOCKS = [b for b in ALL_BLOCKS if b.language in SHELL and any(commands_of(b.text))]
YAML_BLOCKS = [
    b for b in ALL_BLOCKS if b.language in ("yaml", "yml") or (not b.language and _YAML.match(b.text))
]


@pytest.mark.parametrize("block", SHELL_BLOCKS, ids=str)
def test_commands_parse(block: Block) -> None:
    for words in commands_of(block.text):
        try:
            parse(words)
        except click.UsageError as error:
            pytest.fail(f"{block}: soak {shlex.join(words)}: {error.format_message()}")


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_commands_in_a_sentence_parse(page: object) -> None:
    for token in inline(page):  # type: ignore[arg-type]
        if token.type == "code_inline" and _SOAK.match(token.content):
            for words in commands_of(token.content):
                told = [word for word in words if word not in ("...", "…")]
                try:
                    parse(told)
                except (click.BadParameter, click.BadOptionUsage):
                    pass  # a placeholder where a choice or a number stands, or nothing in its place
                except click.UsageError as error:
                    pytest.fail(f"`{token.content}`: {error.format_message()}")


class AnyTag(yaml.SafeLoader):
    """Other programs' tags, such as compose's !reset, stand for the value behind them."""


AnyTag.add_multi_constructor("!", lambda loader, _, node: node.value)


@pytest.mark.parametrize("block", YAML_BLOCKS, ids=str)
def test_yaml_loads_and_a_config_holds_known_keys(block: Block) -> None:
    loaded = yaml.load(block.text, AnyTag)
    assert loaded is not None
    if isinstance(loaded, dict) and loaded and set(loaded) <= SECTIONS:
        try:
            config.build(loaded)
        except config.ConfigError as error:
            unknown = [line for line in str(error).splitlines() if "no such" in line]
            assert not unknown, "\n".join(unknown)


@pytest.mark.parametrize("block", [b for b in ALL_BLOCKS if b.language == "python"], ids=str)
def test_python_compiles(block: Block) -> None:
    compile(block.text, str(block), "exec")


@pytest.mark.parametrize("block", [b for b in ALL_BLOCKS if b.language == "json"], ids=str)
def test_json_loads(block: Block) -> None:
    json.loads(block.text)


def test_there_is_something_to_look_at() -> None:
    assert len(SHELL_BLOCKS) >= 20
    assert len(YAML_BLOCKS) >= 5


@pytest.mark.parametrize(
    "line",
    [
        "soak rnu",
        "soak run --sed 7",
        "soak sim --port many",
        "soak incidents shwo 3fa9",
        "x | soak demo --no",
    ],
)
def test_a_wrong_command_is_seen(line: str) -> None:
    (words,) = commands_of(line)
    with pytest.raises(click.UsageError):
        parse(words)


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("A=1 .venv/bin/soak demo --seed 1 > out 2>&1 &", [["demo", "--seed", "1"]]),
        ("soak sim --port 1 & soak run  # both", [["sim", "--port", "1"], ["run"]]),
        ("ID=$(soak incidents --json | jq .)", [["incidents", "--json"]]),
        ("soak run \\\n  --seed 7", [["run", "--seed", "7"]]),
        ("docker run soak", []),
    ],
)
def test_commands_are_found_in_shell(line: str, found: list[list[str]]) -> None:
    assert list(commands_of(line)) == found
