"""Other load generators, as ``make bench-peers`` installs them: each in an environment of its own.

They are programs with a start and an end of their own, so what a request costs is told from two runs of
different length: the difference of their CPU seconds over the difference of their requests.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import orjson

from soak.bench.stub.answers import MODEL

_PATIENCE_S = 180.0
_FEW, _MANY = 500, 3000
_PROMPT_TOKENS = 56

Words = Callable[[Path, str, int, int, int, Path], list[str]]
"""(python, url, at once, tokens, requests, folder) -> a command line."""


@dataclass(frozen=True, slots=True)
class PeerRound:
    """Of one pair of runs. cpu_s, wall_s: what the long one took more, for so many requests more; peak_rss:
    bytes, of the largest of its processes."""

    requests: int
    cpu_s: float
    wall_s: float
    peak_rss: int

    @property
    def requests_per_cpu_s(self) -> float:
        """What one CPU second brings."""
        return self.requests / self.cpu_s

    @property
    def requests_per_s(self) -> float:
        """By wall clock."""
        return self.requests / self.wall_s


@dataclass(frozen=True, slots=True)
class PeerRun:
    """All rounds of one."""

    version: str
    rounds: list[PeerRound]


@dataclass(frozen=True, slots=True)
class Peer:
    """One of them. python: of its environment."""

    name: str
    version: str
    python: Path
    words: Words

    def round(self, url: str, at_once: int, tokens: int) -> PeerRound:
        """A short run and a long one. Raises ValueError or OSError where it will not run."""
        few = self._run(url, at_once, tokens, _FEW)
        many = self._run(url, at_once, tokens, _MANY)
        requests, cpu_s, wall_s = _MANY - _FEW, many[0] - few[0], many[1] - few[1]
        if cpu_s <= 0 or wall_s <= 0:
            raise ValueError(f"{_MANY} requests took it no longer than {_FEW}")
        return PeerRound(requests, cpu_s, wall_s, many[2])

    def _run(self, url: str, at_once: int, tokens: int, requests: int) -> tuple[float, float, int]:
        """(CPU seconds, wall seconds, peak RSS in bytes) of the program and all that it started."""
        with tempfile.TemporaryDirectory() as place:
            folder = Path(place)
            _tokenizer(folder / "tokenizer")
            words = self.words(self.python, url, at_once, tokens, requests, folder)
            log = folder / "log.txt"
            began = time.monotonic()
            with log.open("wb") as out:
                child = subprocess.Popen(
                    words, stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT, cwd=folder,
                    start_new_session=True, env=_environment(folder),
                )  # fmt: skip
                late = threading.Timer(_PATIENCE_S, lambda: os.killpg(child.pid, signal.SIGKILL))
                late.start()
                try:
                    # wait4 tells what this one child and those it waited for have used
                    _, status, used = os.wait4(child.pid, 0)
                    child.returncode = os.waitstatus_to_exitcode(status)
                finally:
                    late.cancel()
                    with contextlib.suppress(ProcessLookupError):  # whatever it left, or all if interrupted
                        os.killpg(child.pid, signal.SIGKILL)
            wall_s = time.monotonic() - began
            if child.returncode:
                said = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()[-3:]
                short = f"{shlex.join(words[:4])} ... ended with {child.returncode}"
                raise ValueError(f"{short}: {' / '.join(said)[-400:]}")
            return used.ru_utime + used.ru_stime, wall_s, used.ru_maxrss * 1024


def _environment(folder: Path) -> dict[str, str]:
    # not HF_HUB_OFFLINE: with it, aiperf takes the path of its tokenizer for the name of one in a cache
    kept = {name: value for name, value in os.environ.items() if not name.lower().endswith("_proxy")}
    return kept | {"HOME": str(folder), "NO_PROXY": "127.0.0.1", "TOKENIZERS_PARALLELISM": "false"}


def _tokenizer(folder: Path) -> None:
    """A tokenizer of a thousand words, for programs that will not send a prompt without one."""
    folder.mkdir()
    vocabulary = {"<unk>": 0, "<s>": 1, "</s>": 2} | {f"w{i}": i + 3 for i in range(997)}
    added = [
        {"id": i, "content": name, "special": True, "single_word": False, "lstrip": False, "rstrip": False}
        | {"normalized": False}
        for name, i in list(vocabulary.items())[:3]
    ]
    whole = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": added,
        "normalizer": None,
        "pre_tokenizer": {"type": "WhitespaceSplit"},
        "post_processor": None,
        "decoder": None,
        "model": {"type": "WordLevel", "vocab": vocabulary, "unk_token": "<unk>"},
    }
    (folder / "tokenizer.json").write_bytes(orjson.dumps(whole))
    named = {"unk_token": "<unk>", "bos_token": "<s>", "eos_token": "</s>", "model_max_length": 100_000}
    (folder / "tokenizer_config.json").write_bytes(
        orjson.dumps({"tokenizer_class": "PreTrainedTokenizerFast"} | named)
    )
    (folder / "config.json").write_bytes(
        orjson.dumps({"model_type": "llama", "architectures": ["LlamaForCausalLM"], "vocab_size": 1000})
    )


def _guidellm(  # noqa: PLR0917 - all of Words
    python: Path, url: str, at_once: int, tokens: int, requests: int, folder: Path
) -> list[str]:
    lengths = f"prompt_tokens={_PROMPT_TOKENS},output_tokens={tokens}"
    return [
        *(str(python.parent / "guidellm"), "run"),
        *("--backend", f"kind=openai_http,target={url},model={MODEL}"),
        *("--profile", f"kind=concurrent,streams={at_once}"),
        *("--constraint", f"kind=max_requests,count={requests}"),
        *("--tokenizer", f"kind=huggingface_auto,model={folder / 'tokenizer'}"),
        *("--data", f"kind=synthetic_text,{lengths}", "--output", f"kind=json,path={folder / 'out.json'}"),
        "--disable-console",
    ]


def _aiperf(  # noqa: PLR0917 - all of Words
    python: Path, url: str, at_once: int, tokens: int, requests: int, folder: Path
) -> list[str]:
    return [
        *(str(python.parent / "aiperf"), "profile", "--model", MODEL, "--url", url),
        *("--endpoint-type", "completions", "--concurrency", str(at_once)),
        *("--request-count", str(requests), "--tokenizer", str(folder / "tokenizer")),
        *("--synthetic-input-tokens-mean", str(_PROMPT_TOKENS), "--output-tokens-mean", str(tokens)),
        *("--output-artifact-dir", str(folder / "out"), "--ui", "none"),
    ]


def _bench_serving(  # noqa: PLR0917 - all of Words
    python: Path, url: str, at_once: int, tokens: int, requests: int, folder: Path
) -> list[str]:
    return [
        *(str(python), "-m", "sglang.bench_serving", "--backend", "sglang", "--base-url", url),
        *("--model", str(folder / "tokenizer"), "--tokenizer", str(folder / "tokenizer")),
        *("--dataset-name", "random-ids", "--random-input-len", str(_PROMPT_TOKENS)),
        *("--random-output-len", str(tokens), "--random-range-ratio", "1", "--num-prompts", str(requests)),
        *("--max-concurrency", str(at_once), "--disable-stream", "--warmup-requests", "0"),
        *("--output-file", str(folder / "out.jsonl")),
    ]


_LOCUSTFILE = """\
from locust import FastHttpUser, task
from locust.clients import HttpSession

IDS = {ids}
LEFT = [{requests}]

class Asks(FastHttpUser):
    @task
    def generate(self):
        LEFT[0] -= 1
        sampling = {{"max_new_tokens": {tokens}, "temperature": 0.0, "ignore_eos": True}}
        body = {{"rid": f"locust-{{LEFT[0]:010d}}", "input_ids": IDS, "sampling_params": sampling}}
        with self.client.post("/generate", json=body, catch_response=True) as answer:
            answer.json()
        if LEFT[0] <= 0:
            self.environment.runner.quit()
"""


def _locust(  # noqa: PLR0917 - all of Words
    python: Path, url: str, at_once: int, tokens: int, requests: int, folder: Path
) -> list[str]:
    file = folder / "asks.py"
    ids = [11 + 17 * i % 900 for i in range(_PROMPT_TOKENS)]
    file.write_text(_LOCUSTFILE.format(ids=ids, requests=requests, tokens=tokens), encoding="utf-8")
    return [
        *(str(python), "-m", "locust", "-f", str(file), "--headless", "--host", url, "--only-summary"),
        *("-u", str(at_once), "-r", str(at_once), "--stop-timeout", "5"),
    ]


_KNOWN: dict[str, tuple[str, Words]] = {
    "guidellm": ("guidellm", _guidellm),
    "aiperf": ("aiperf", _aiperf),
    "sglang.bench_serving": ("sglang", _bench_serving),
    "locust FastHttp": ("locust", _locust),
}


def installed(folder: Path) -> tuple[tuple[Peer, ...], dict[str, str]]:
    """Those that are there, and why the others are not. folder: of environments, named for their packages."""
    found, missing = [], {}
    for name, (package, words) in _KNOWN.items():
        python = (folder / package / "bin" / "python").absolute()
        code = f"from importlib.metadata import version; print(version({package!r}))"
        try:
            said = subprocess.run(
                [str(python), "-c", code], check=True, capture_output=True, text=True, timeout=60.0
            ).stdout.strip()
        except (OSError, subprocess.SubprocessError):
            missing[name] = f"not in {folder / package}"
            continue
        found.append(Peer(name, said, python, words))
    return tuple(found), missing
