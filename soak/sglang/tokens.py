"""The token ids of a text, as the server's own tokenizer has them: by /tokenize, or by what /generate echoes.

Only servers with a tokenizer can be asked. Chats are laid out by the server's own template, which /tokenize
alone applies. It generates nothing.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from typing import Any

from soak.sglang.client import SGLangClient
from soak.sglang.exchange import GenerateRequest

Ids = tuple[int, ...]


class TokensUnknownError(Exception):
    """The server does not give the ids of a text; the message says why and what to do."""


class Tokens:
    """Asks one server. by: which of the two ways it has taken, "tokenize" or "echo", once it has."""

    def __init__(self, client: SGLangClient) -> None:
        self._client = client
        self._tokenizes = True
        self.by = ""

    async def of_text(self, text: str) -> Ids:
        """The ids of a text, nothing added before or after. Raises TokensUnknownError."""
        if self._tokenizes:
            ids = await self._tokenize({"prompt": text, "add_special_tokens": False})
            if ids is not None:
                return ids
            self._tokenizes = False
        return await self._echo(text)

    async def of_chat(self, messages: Sequence[Any]) -> Ids:
        """The ids of a chat in the model's own template. Raises TokensUnknownError."""
        ids = await self._tokenize({"messages": list(messages)})
        if ids is None:
            raise TokensUnknownError(
                f"{self._client.base_url} lays no chat out (POST /tokenize takes no messages): give its text"
            )
        return ids

    async def _tokenize(self, body: dict[str, Any]) -> Ids | None:
        status, said = await self._client.post_json("/tokenize", body)
        tokens = said.get("tokens") if status == 200 and isinstance(said, dict) else None
        if not isinstance(tokens, list) or not tokens or not all(type(t) is int for t in tokens):
            return None
        self.by = "tokenize"
        return tuple(tokens)

    async def _echo(self, text: str) -> Ids:
        request = GenerateRequest(
            prompts=(text,),
            rids=(f"soak-text-{secrets.token_hex(8)}",),
            max_new_tokens=0,
            return_logprob=True,
            logprob_start_len=0,
        )
        (answer,) = await self._client.generate(request)
        if not answer.ok or not answer.input_token_ids.size:
            raise TokensUnknownError(
                f"{self._client.base_url} gives no ids of a text ({answer.detail or 'none came back'}): it "
                "has no tokenizer, or something before it takes them out. Without load.text it is asked in "
                "random ids; or give a corpus of token ids"
            )
        self.by = "echo"
        return tuple(answer.input_token_ids.tolist())
