"""The simulator's text side and grammar: every text can be encoded, and only what a schema allows comes."""

from __future__ import annotations

import asyncio
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from soak.plan.strict import code_of, schema_of, wrong
from soak.sim.config import SimConfig
from soak.sim.grammar import GrammarError, allowed, texts_of
from soak.sim.server import running
from soak.sim.text import FIRST_BYTE, Tokenizer
from tests.sim.asking import post

TOKENS = Tokenizer(1000)


@given(st.text(max_size=80))
def test_text_comes_back_from_its_ids(text: str) -> None:
    ids = TOKENS.encode(text)
    assert TOKENS.decode(ids) == text
    assert all(FIRST_BYTE <= i < 1000 for i in ids)


@given(st.lists(st.integers(0, 999), max_size=40))
def test_any_ids_are_some_text(ids: list[int]) -> None:
    assert isinstance(TOKENS.decode(ids), str)


def test_words_have_tokens_of_their_own_and_a_small_vocabulary_none() -> None:
    assert len(TOKENS.encode(" baba befa")) == 2
    assert len(Tokenizer(259).encode(" baba")) == 5
    with pytest.raises(ValueError, match="at least 259"):
        Tokenizer(258)


def test_a_grammar_knows_what_comes_next_and_when_it_is_whole() -> None:
    texts = texts_of(schema_of("soak-1"))
    assert len(texts) == 3
    assert allowed(texts, []) == {FIRST_BYTE + ord("{")}
    done = [FIRST_BYTE + b for b in texts[0]]
    assert allowed(texts, done) == set()
    assert allowed(texts, [FIRST_BYTE]) is None
    assert len(allowed(texts, done[: texts[0].index(b"alpha")]) or ()) == 3


@pytest.mark.parametrize(
    "schema",
    ["{", "[]", '{"type":"string"}', '{"type":"object","properties":{"a":{"type":"integer"}}}',
     '{"type":"object","properties":{"a":{"const":1}},"required":[]}',
     '{"type":"object","properties":{"a":{"const":1}},"minProperties":1}'],
)  # fmt: skip
def test_a_schema_that_is_not_known_is_refused(schema: str) -> None:
    with pytest.raises(GrammarError):
        texts_of(schema)


@pytest.mark.parametrize("spec", [0, 3])
async def test_eight_strict_answers_at_once_are_each_its_own(spec: int) -> None:
    async with running(SimConfig(tokenizer=True, spec_draft_tokens=spec)) as url:

        async def ask(part: int) -> str:
            code = code_of(1, 0, 0, part)
            params = {"max_new_tokens": 96, "temperature": part % 2, "json_schema": schema_of(code)}
            status, said = await post(
                url, "/generate", {"text": f"say what you are {part}", "sampling_params": params}
            )
            assert status == 200
            assert said["meta_info"]["finish_reason"] == {"type": "stop", "matched": 2}
            assert wrong(said["text"], code, True) == ""
            return str(json.loads(said["text"])["id"])

        assert len(set(await asyncio.gather(*(ask(part) for part in range(8))))) == 8


async def test_text_in_and_text_out_and_the_tokens_of_a_text() -> None:
    async with running(SimConfig(tokenizer=True)) as url:
        asked = {"text": [" baba x", " befa"], "sampling_params": {"max_new_tokens": 3, "ignore_eos": True}}
        _, said = await post(url, "/generate", asked)
        assert [one["meta_info"]["prompt_tokens"] for one in said] == [3, 1]
        assert [one["text"] for one in said] == [TOKENS.decode(one["output_ids"]) for one in said]
        _, tokens = await post(url, "/tokenize", {"prompt": " baba x"})
        assert tokens["tokens"] == TOKENS.encode(" baba x")
        bad = {"text": "x", "sampling_params": {"json_schema": "{"}}
        status, refused = await post(url, "/generate", bad)
        assert status == 400
        assert "Failed to compile json grammar" in refused["error"]["message"]


async def test_without_a_tokenizer_there_is_neither() -> None:
    async with running(SimConfig()) as url:
        for asked in ({"text": "x"}, {"input_ids": [5], "sampling_params": {"json_schema": "{}"}}):
            status, refused = await post(url, "/generate", asked)
            assert status == 400
            assert "tokenizer" in refused["error"]["message"]
        status, _ = await post(url, "/tokenize", {"prompt": "x"})
        assert status == 500
