"""A run in text: its ids come from the server's own tokenizer, and needles are graded cold and cached."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from soak import config as configs
from soak.cli import main
from soak.cli.text import _written
from soak.config import ConfigError
from soak.plan.geometry import Geometry
from soak.plan.lexicon import LexiconError, lexicon_of
from soak.sglang.client import SGLangClient
from soak.sglang.tokens import Tokens, TokensUnknownError
from soak.sim.config import SimConfig
from soak.sim.server import running
from soak.sim.text import Tokenizer
from tests.run.test_soaking import config, soak


async def test_needles_of_text_are_asked_cold_and_cached(tmp_path: Path) -> None:
    async with running(SimConfig(numerics="exact", tokenizer=True)) as url:
        async with SGLangClient(url) as client:
            lexicon = await _written(client, None, 1)
        assert Tokenizer(1000).decode(list(lexicon.facts[0][0])).startswith(" The harbour code of ")
        path = tmp_path / "text.json"
        path.write_text(json.dumps(lexicon.as_dict()))
        loaded = config(
            url,
            run={"duration": "16s"},
            load={"shapes": {"needles": 1}, "text": str(path), "max_context": 500},
            probe={"rate": 50},
        )
        summary, _ = await soak(loaded, tmp_path / "run")
    assert summary["needles"]
    for row in summary["needles"]:
        assert row["asked"] > 0
        assert row["forgotten"] == 0
        assert row["cached"] == row["cold"]  # to the last bit: nothing is forgotten, little was known
    states = {c["name"]: c["state"] for c in summary["coverage"]}
    assert states == {"needle-recalled": "confirmed"}
    assert not summary["probes"]["hard_alarms"]


async def test_a_server_that_does_not_tokenize_is_asked_for_an_echo() -> None:
    async with running(SimConfig(tokenizer=True)) as url, SGLangClient(url) as client:
        tokens = Tokens(client)
        by_name = await tokens.of_text(" baba is here")
        assert tokens.by == "tokenize"
        tokens._tokenizes = False
        assert await tokens.of_text(" baba is here") == by_name
        assert tokens.by == "echo"
        with pytest.raises(TokensUnknownError, match="lays no chat out"):
            await tokens.of_chat([{"role": "user", "content": "hello"}])


async def test_without_a_tokenizer_ids_alone_can_be_given() -> None:
    async with running(SimConfig()) as url, SGLangClient(url) as client:
        with pytest.raises(TokensUnknownError, match="no tokenizer"):
            await _written(client, None, 1)
        lexicon = await _written(client, [[5, 6], [7]], 1)
        assert (lexicon.pieces, lexicon.facts) == (((5, 6), (7,)), ())


@pytest.mark.parametrize(
    ("documents", "what_next"),
    [(3 * [list(range(1, 90_001))], "of its 3 documents keep the first 2 (180,000 tokens)"),
     ([[7] * 200_001], "of its 1 documents cut or split the first")],
)  # fmt: skip
async def test_of_a_corpus_that_is_too_long_it_is_said_how_much_fits(
    tmp_path: Path, documents: list[list[int]], what_next: str
) -> None:
    corpus, out = tmp_path / "corpus.jsonl", tmp_path / "out.json"
    corpus.write_text("\n".join(map(json.dumps, documents)))
    there = ["--target", "http://127.0.0.1:9", "--out", str(out)]  # ids need no server until all are read
    done = await asyncio.to_thread(CliRunner().invoke, main, ["text", str(corpus), *there])
    assert done.exit_code == 1
    assert what_next in " ".join(done.output.split())
    assert not out.exists()
    with pytest.raises(LexiconError, match="fewer or shorter documents with `soak text`"):
        lexicon_of({"format": "soak-text", "pieces": documents})


async def test_a_server_without_a_tokenizer_is_soaked_in_a_corpus_of_ids(tmp_path: Path) -> None:
    path = tmp_path / "text.json"
    async with running(SimConfig(numerics="exact")) as url:
        async with SGLangClient(url) as client:
            lexicon = await _written(client, [[first, 6, 7, 8, 9] for first in range(20, 60)], 1)
        path.write_text(json.dumps(lexicon.as_dict()))
        loaded = config(
            url,
            run={"duration": "5s"},
            load={"shapes": {"needles": 1}, "text": str(path), "max_context": 300},
            probe={"rate": 50},
        )
        summary, _ = await soak(loaded, tmp_path / "run")
    assert summary["needles"]
    assert all(row["forgotten"] == 0 for row in summary["needles"])
    assert not summary["probes"]["hard_alarms"]


def test_a_text_of_another_model_is_refused_with_its_name(tmp_path: Path) -> None:
    path = tmp_path / "text.json"
    path.write_text(json.dumps({"format": "soak-text", "model": "big", "pieces": [[5], [60_000]]}))
    loaded = configs.build({"load": {"text": str(path)}})
    with pytest.raises(ConfigError, match=r"load\.text: .*token id 60000.*written for big"):
        loaded.resolve(Geometry())
    assert loaded.resolve(Geometry(vocab_size=100_000)).geometry.pieces == ((5,), (60_000,))
    path.write_text("{")
    with pytest.raises(ConfigError, match=r"load\.text: "):
        loaded.resolve(Geometry())
    with pytest.raises(ConfigError, match="`soak text` writes it"):
        configs.build({"load": {"text": str(tmp_path / "none.json")}}).resolve(Geometry())


@pytest.mark.parametrize("line", ["{", "7", '{"other": 1}', "[]", '[1, "a"]', '""'])
def test_a_corpus_line_that_is_no_document_is_named(tmp_path: Path, line: str) -> None:
    corpus = tmp_path / "corpus.jsonl"
    corpus.write_text(f'"a text"\n{line}\n')
    done = CliRunner().invoke(main, ["text", str(corpus), "--out", str(tmp_path / "out.json")])
    assert done.exit_code == 1
    assert "line 2" in done.output


def test_a_corpus_of_every_kind_is_read(tmp_path: Path) -> None:
    from soak.cli.text import _documents

    corpus = tmp_path / "corpus.jsonl"
    chat = {"messages": [{"role": "user", "content": "hi"}]}
    corpus.write_text("\n".join(json.dumps(d) for d in ("a", {"text": "b"}, [1, 2], {"ids": [3]}, chat)))
    assert _documents(corpus) == ["a", "b", [1, 2], [3], chat]
    assert lexicon_of({"format": "soak-text", "pieces": [[1]]}).facts == ()
