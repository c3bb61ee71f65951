"""``soak text``: the built-in text or a corpus as the token ids of one model, in a file for ``load.text``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from soak.plan.lexicon import Ids, Lexicon
    from soak.sglang.tokens import Tokens


@click.command(
    "text",
    epilog="""\b
Examples:
  soak text --target http://127.0.0.1:30000 --out text.json
  soak text corpus.jsonl --out text.json""",
)
@click.argument("corpus", required=False, type=click.Path(path_type=Path, dir_okay=False))
@click.option("--target", default="http://127.0.0.1:30000", show_default=True, help="A server of that model.")
@click.option(
    "--out", required=True, type=click.Path(path_type=Path, dir_okay=False), help="The file to write."
)
@click.option("--seed", default=1, show_default=True, help="Of the built-in text and its facts.")
def command(corpus: Path | None, target: str, out: Path, seed: int) -> None:
    """Write the text that a run with load.text sends, as token ids.

    Without CORPUS the built-in text is used. CORPUS holds a line of JSON a document: a text in quotes or
    {"text": ...}, token ids as a list or {"ids": ...}, or a chat as {"messages": [...]}; 200,000 tokens in
    all at most, from which prompts of any length are put together. The facts for
    needles are always the built-in ones; a server without a tokenizer takes ids alone, and no facts.
    """
    import asyncio

    import orjson

    from soak.config import Config, ConfigError
    from soak.run.connecting import client_for
    from soak.sglang.tokens import TokensUnknownError

    # a few dozen short requests, one at a time: no load, whatever the address
    budget = {"in_flight": 256, "tokens_per_second": 1e9}
    asking = Config.model_validate({"target": {"url": target, "allow_load": True}, "budget": budget})

    async def ask() -> Lexicon:
        async with client_for(asking) as client:
            return await _written(client, documents, seed)

    try:
        documents = None if corpus is None else _documents(corpus)
        lexicon = asyncio.run(ask())
    except (TokensUnknownError, ConfigError) as error:
        raise click.ClickException(str(error)) from error
    try:
        out.write_bytes(orjson.dumps(lexicon.as_dict()) + b"\n")
    except OSError as error:
        raise click.ClickException(f"{out}: {error.strerror}") from error
    tokens = sum(map(len, lexicon.pieces))
    click.echo(f"{out}: {len(lexicon.pieces)} pieces of {tokens:,} tokens, {len(lexicon.facts)} facts")


async def _written(client: Any, documents: list[Any] | None, seed: int) -> Lexicon:
    from soak.plan.lexicon import MOST_TOKENS, Lexicon
    from soak.plan.text_maker import made_text
    from soak.sglang.tokens import Tokens, TokensUnknownError

    text, tokens = made_text(seed), Tokens(client)
    if documents is None:
        documents = list(text.sentences)
    pieces: list[Ids] = []
    held = 0
    for document in documents:
        pieces.append(await _ids(tokens, document))
        held += len(pieces[-1])
        if held > MOST_TOKENS:
            raise click.ClickException(_too_long(pieces, len(documents)))
    facts = []
    try:
        for fact, question, answer in text.facts:
            facts.append(
                (await tokens.of_text(fact), await tokens.of_text(question), await tokens.of_text(answer))
            )
    except TokensUnknownError:
        if not all(isinstance(document, list) for document in documents):
            raise
        facts = []  # no tokenizer: the needles are ids, too
    _, info, _ = await client.get_json("/model_info")
    model = str(info.get("model_path", "")) if isinstance(info, dict) else ""
    return Lexicon(tuple(pieces), tuple(facts), model)


def _too_long(pieces: list[Ids], documents: int) -> str:
    """What to do where the last of these pieces is one too many."""
    from soak.plan.lexicon import MOST_TOKENS

    fit = sum(map(len, pieces[:-1]))
    keep = f"keep the first {len(pieces) - 1} ({fit:,} tokens)" if fit else "cut or split the first"
    return (
        f"the corpus is longer than {MOST_TOKENS:,} tokens, and every run and bundle holds a copy of it: of "
        f"its {documents} documents {keep}, or a sample of all. Prompts of any length are put together from "
        "them, so that a longer corpus would make no longer prompts"
    )


async def _ids(tokens: Tokens, document: Any) -> Ids:
    if isinstance(document, list):
        return tuple(document)
    if isinstance(document, str):
        return await tokens.of_text(document)
    return await tokens.of_chat(document["messages"])


def _documents(path: Path) -> list[Any]:
    """Texts, lists of ids and chats. Raises ClickException naming the line."""
    import orjson

    try:
        lines = path.read_bytes().splitlines()
    except OSError as error:
        raise click.ClickException(f"{path}: {error.strerror}") from error
    documents = []
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            said = orjson.loads(line)
        except orjson.JSONDecodeError as error:
            raise click.ClickException(f"{path}, line {number}: not JSON: {error}") from error
        if isinstance(said, dict) and len(said) == 1:
            (name, value), *_ = said.items()
            said = said if name == "messages" and isinstance(value, list) else value
        ids = isinstance(said, list) and said and all(type(i) is int and i >= 0 for i in said)
        if not (ids or (isinstance(said, str) and said) or (isinstance(said, dict) and "messages" in said)):
            raise click.ClickException(
                f'{path}, line {number}: a text, token ids, or {{"messages": [...]}} is wanted'
            )
        documents.append(said)
    if not documents:
        raise click.ClickException(f"{path}: no document in it")
    return documents
