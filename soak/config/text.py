"""The key ``load.text``: a file that ``soak text`` wrote, read into the geometry that a plan goes by."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

from soak.config.mistake import ConfigError
from soak.plan.geometry import Geometry
from soak.plan.lexicon import LexiconError, lexicon_of


def in_text(geometry: Geometry, path: Path) -> Geometry:
    """The geometry with the file's pieces and facts. Raises ConfigError, also for ids the server lacks."""
    try:
        lexicon = lexicon_of(json.loads(path.read_text(encoding="utf-8")))
    except OSError as error:
        raise ConfigError(f"load.text: {path}: {error.strerror}; `soak text` writes it") from error
    except (UnicodeDecodeError, json.JSONDecodeError, LexiconError) as error:
        raise ConfigError(f"load.text: {path}: {error}") from error
    highest = max(max(part) for part in (*lexicon.pieces, *(p for fact in lexicon.facts for p in fact)))
    # specials and added tokens may lie above what random ids are drawn from
    most = geometry.vocab_size + max(geometry.vocab_size // 50, geometry.reserved_ids)
    if highest >= most:
        raise ConfigError(
            f"load.text: {path}: token id {highest}, and this server has about {geometry.vocab_size}: it "
            f"was written for {lexicon.model or 'another model'}; write it anew with `soak text`"
        )
    return replace(geometry, pieces=lexicon.pieces, facts=lexicon.facts)
