"""A trace as one stand-alone Python script, to be attached to a bug report. Makes text, sends nothing.

What is emitted needs nothing but Python 3.8 and an address. It sends the requests of the trace in their order
and side by side as they were, then asks the question warm and cold, and judges as a replay does. It holds
token ids and what the server said of itself, and no key; that comes from the environment where it runs.
"""

from __future__ import annotations

import json
import string
import textwrap
from pathlib import Path
from typing import Any

from soak.incident.about import About
from soak.incident.cuts import case_share, own_len
from soak.incident.judge import (
    CLEAR_OF_NOISE,
    SHARE_IF_EXACT,
    SHARE_OF_ORIGINAL,
    Original,
    original_of,
)
from soak.incident.order import Order, order_of
from soak.incident.trace import Trace
from soak.oracle.probe import PAIR_WORDS, ProbeOutcome

MOST_TOKENS = 200_000
_WIDTH = 100
_TOLD = ("version", "model_path", "attention_backend", "mamba_radix_cache_strategy", "page_size", "device")


class ScriptError(Exception):
    """No script can say this; the message says why."""


_CODE = string.Template('''\
"""$title
$where
$server
$sends
Usage: python3 $name [URL] [--exact-ids]; URL: http://127.0.0.1:30000 by default; key: SGLANG_API_KEY
Ids are other ones in every run (--exact-ids: the recorded ones). Exit: 0 PASS, 1 FAIL, 2 cannot tell."""
import json, os, random, sys, threading, time, urllib.request
{"-h", "--help"}.isdisjoint(sys.argv) or sys.exit(print(__doc__) or 2)
URL = ([w for w in sys.argv[1:] if w[0] != "-"] or ["http://127.0.0.1:30000"])[0].rstrip("/")
RUN, KEY = "repro-%016x-" % random.SystemRandom().getrandbits(64), os.environ.get("SGLANG_API_KEY")
HEADERS = dict({"Content-Type": "application/json"}, **({"Authorization": "Bearer " + KEY} if KEY else {}))
STAY = type("Stay", (urllib.request.HTTPRedirectHandler,), {"redirect_request": lambda *_: None})
OPENER = urllib.request.build_opener(urllib.request.ProxyHandler({}), STAY)  # the key goes to URL only
LOW, HIGH = $ordinary  # token ids in between are exchanged for each other, others are sent as they are
OTHER = list(range(LOW, HIGH)) if "--exact-ids" in sys.argv else random.sample(range(LOW, HIGH), HIGH - LOW)
WRITTEN, FAULTS = {}, []  # prompt and output by place; what went wrong

def salted(ids):
    return [OTHER[i - LOW] if LOW <= i < HIGH else i for i in ids]

def post(path, namespace="", **body):
    body.update({"extra_key": RUN + namespace} if namespace else {})
    request = urllib.request.Request(URL + path, json.dumps(body).encode(), HEADERS)
    with OPENER.open(request, timeout=300) as answer:
        return json.loads(answer.read() or b"null")

def generate(prompts, new, temperature, namespace, rids):
    answers = post("/generate", namespace, input_ids=prompts, rid=rids, sampling_params={
        "max_new_tokens": new, "temperature": temperature, "ignore_eos": True})
    return [ids + answer["output_ids"] for ids, answer in zip(prompts, answers)]

def score(ids, start, namespace):  # (cached tokens, logprobs of ids[start + 1:]); a hit never passes start
    meta = post("/generate", namespace, input_ids=ids, return_logprob=True, logprob_start_len=start,
                sampling_params={"max_new_tokens": 0, "temperature": 0})["meta_info"]
    return meta["cached_tokens"], [entry[0] for entry in meta["input_token_logprobs"][1:]]

def send(number, prompts, new, temperature, namespace):
    try:
        ids = [WRITTEN[parent][:n] + salted(own) if n else salted(own) for _, parent, n, own, _ in prompts]
        rids = [RUN + "%06d" % prompt[0] for prompt in prompts]
        for rid, abort_s in [(rid, p[4]) for rid, p in zip(rids, prompts) if p[4] is not None]:
            threading.Timer(abort_s, post, ("/abort_request",), {"rid": rid}).start()
        WRITTEN.update(zip([p[0] for p in prompts], generate(ids, new, temperature, namespace, rids)))
    except Exception as error:
        if all(prompt[4] is None for prompt in prompts):  # what is taken back may come back as an error
            FAULTS.append("request %d: %r" % (number, error))
    ENDED[number].set()

def apart(warm, cold):
    return sum(min(abs(w - c), 1) ** 2 / 2 for w, c in zip(warm, cold)) / len(warm)  # the score

def main():
    print("sending %d requests to %s, rids and namespaces %s..." % (len(REQUESTS), URL, RUN), flush=True)
    prefix = generate([salted(PREFIX)], 0, 0, NAMESPACE, [RUN + "prefix"])[0] if PREFIX else []
    threads = [threading.Thread(target=send, args=(n, *row[2:])) for n, row in enumerate(REQUESTS)]
    for thread, (ended, wait_s, *_) in zip(threads, REQUESTS):
        [ENDED[number].wait() for number in ENDS[:ended]]
        time.sleep(wait_s)
        thread.start()
    [thread.join() for thread in threads]
    ids, pairs, colds = (prefix or WRITTEN[VICTIM][:INHERITS]) + salted(TAIL), [], []
    boundary = score(ids, len(ids) - 1, NAMESPACE)[0]
    for number in range(3):  # again and again: a cold pass, too, can be what sets the fault off
        cached, warm = score(ids[:boundary + 1 + SCORED], boundary, NAMESPACE)
        colds.append(score(ids[:boundary + 1 + SCORED], boundary, "cold-%d" % number)[1])
        pairs += [(warm, colds[-1])] if 0 < boundary == cached else []
    if not pairs:
        return print("cannot tell: %d, then %d tokens were cached; %s" % (boundary, cached, FAULTS)) or 2
    if any(None in logprobs for logprobs in colds + [pair[0] for pair in pairs]):
        return print("FAIL: a logprob is null, which is how SGLang writes NaN and infinity") or 1
    noise, (warm, cold) = max(apart(colds[0], c) for c in colds), max(pairs, key=lambda p: apart(*p))
    for place, (w, c) in enumerate(zip(warm, cold), boundary + 1):
        print("position %6d   cached %9.4f   cold %9.4f   apart %+9.4f" % (place, w, c, w - c))
    failed = apart(warm, cold) > max($clear * noise, $least if noise else $least_if_exact)
    code = 1 if failed else 2 if FAULTS else 0
    said = ["PASS", "FAIL", "cannot tell, not all was sent %s" % FAULTS][code]
    print("%s: score %.3g, cold against cold %.3g, found with $found" % (said, apart(warm, cold), noise))
    return code

''')

_END = """\
try:
    sys.exit(main())
except Exception as error:
    print("cannot tell: %s" % (FAULTS or repr(error)))
    sys.exit(2)
"""


def script(name: str, trace: Trace, about: About) -> str:
    """The text of a script of that file name. Raises ScriptError for a case that no script can say."""
    original = original_of(trace.case)
    _refuse(trace, original)
    order = order_of(trace)
    low, high = about.ordinary_ids()
    code = _CODE.substitute(
        title=_title(original),
        where=_where(trace, about),
        server=_server(about),
        name=_plain(name),
        sends=_sends(trace, order),
        ordinary=f"{low}, {high}",
        clear=f"{CLEAR_OF_NOISE:g}",
        least=f"{SHARE_OF_ORIGINAL * original.score:.3g}",
        least_if_exact=f"{SHARE_IF_EXACT * original.score:.3g}",
        found=f"{original.score:.3g}",
    )
    return code + _data(trace, order) + _END


def _refuse(trace: Trace, original: Original) -> None:
    case = trace.case
    if case.outcome is ProbeOutcome.BROKEN_INVARIANT:
        raise ScriptError("a broken length or another request's answer is not shown by logprobs: no script")
    if case.adapter or any(sent.adapter or sent.namespace.startswith("=") for sent in trace.sent):
        raise ScriptError("a script sends to no LoRA adapter: replay the bundle instead")
    if original.unsteady:
        raise ScriptError("its cold passes already disagree, so no script can call one of them the truth")
    if len(case.ids) - case.start < 2:
        raise ScriptError("the case has nothing to score after its prefix: no script can ask about it")
    tokens = sum(own_len(sent) for sent in trace.sent)
    if tokens > MOST_TOKENS:
        raise ScriptError(
            f"{tokens:,} token ids; a script holds at most {MOST_TOKENS:,}: give --minimize or a --window"
        )


def _title(original: Original) -> str:
    size = "a null logprob" if original.hard else f"up to {original.max_abs:.3g} nats apart"
    return f"SGLang: what comes from the prefix cache is not what a cold pass gives ({size})."


def _where(trace: Trace, about: About) -> str:
    case = trace.case
    found = f"{_plain(case.shape)}, written by {case.kind.value}, resumed at {case.start}"
    return f"Found by soak {_plain(about.soak_version)}: {found}."


def _server(about: About) -> str:
    fields = [f"{name} {_plain(about.fingerprint[name])}" for name in _TOLD if about.fingerprint.get(name)]
    words = f"Server: {', '.join(fields) or 'unknown'}."
    return "\n".join(textwrap.wrap(words, _WIDTH + 8, break_long_words=False, break_on_hyphens=False))


def _plain(value: object) -> str:
    """Somebody else's word inside the script's docstring: nothing that could end it."""
    return "".join(c if c.isascii() and (c.isalnum() or c in " ._-/:,+") else "?" for c in str(value))[:80]


def _sends(trace: Trace, order: Order) -> str:
    tokens = sum(len(s.ids) + s.max_new_tokens for s in trace.sent)
    prompts = "one prompt" if len(trace.sent) == 1 else f"{len(trace.sent)} prompts"
    requests = "" if len(order.requests) == 1 else f" in {len(order.requests)} requests"
    return (
        f"Sends {prompts}{requests} ({tokens} tokens), then asks {len(trace.case.ids)} tokens, three times "
        "warm and cold."
    )


def _data(trace: Trace, order: Order) -> str:
    """What is sent, as Python literals of numbers and quoted texts."""
    case, share = trace.case, case_share(trace)
    names = dict.fromkeys([*(sent.namespace for sent in trace.sent), case.namespace])
    space = {name: f"space-{n}" if name else "" for n, name in enumerate(names)}
    outside = case.victim is None
    lines = [
        "# What is sent. A request: how many of ENDS must have ended before, seconds to wait then,",
        "# its prompts [place, parent's place, ids inherited from it, own ids, seconds to an abort],",
        '# max_new_tokens, temperature, namespace ("" is the one that everybody shares).',
        f"ENDS = {_literal(list(order.ends))}",
        "REQUESTS = [",
    ]
    for request in order.requests:
        first = trace.sent[request.places[0]]
        prompts = [
            [
                place,
                trace.sent[place].parent,
                trace.sent[place].inherits,
                trace.sent[place].ids[trace.sent[place].inherits :].tolist(),
                None if (after := trace.sent[place].abort_us) is None else after / 1e6,
            ]
            for place in request.places
        ]
        row = [
            request.finished_before,
            request.gap_us / 1e6,
            prompts,
            first.max_new_tokens,
            first.temperature_milli / 1000,
            space[first.namespace],
        ]
        lines.append(f"{_literal(row)},")
    lines += [
        "]",
        "# The question: what the prompt at place VICTIM wrote (or PREFIX, written first), then TAIL.",
        f"VICTIM, INHERITS, NAMESPACE, SCORED = {case.victim}, {share}, {_literal(space[case.namespace])}, "
        f"{len(case.ids) - case.start - 1}",
        f"PREFIX = {_literal(case.ids[: case.start].tolist() if outside else [])}",
        f"TAIL = {_literal(case.ids[case.start if outside else share :].tolist())}",
        "ENDED = [threading.Event() for _ in REQUESTS]",
    ]
    return "\n".join(lines) + "\n"


def _literal(value: Any) -> str:
    """A Python literal, its lines at most about a hundred characters."""
    text = json.dumps(value).replace("null", "None")
    return "\n".join(textwrap.wrap(text, _WIDTH, break_long_words=False, break_on_hyphens=False))


def write_script(path: Path, trace: Trace, about: About) -> None:
    """Write the script. Raises ScriptError, also where the file is there already."""
    if trace.case.kind.invariance:
        raise ScriptError(
            f"--emit: {PAIR_WORDS[trace.case.kind]}: a script asks warm against cold, and both can be wrong "
            "here; replay the bundle instead"
        )
    text = script(path.name, trace, about)
    try:
        with path.open("x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError:
        raise ScriptError(f"{path}: is there already; name a file that is not") from None
    except OSError as error:
        raise ScriptError(f"{path}: {error.strerror}") from error
