"""Alert rules on made-up series: what fires at which minute. ``promtool test rules`` evaluates them.

Series are as promtool writes them: ``0x4 1x8`` is 0 five times and then 1 nine times, ``_`` a scrape that
is missing, ``stale`` a target that is gone. One value every 15 seconds.
"""

from __future__ import annotations

from dataclasses import dataclass

SOAK = 'fleet="f",job="soak",instance="a:1"'
OTHER = 'fleet="f",job="soak",instance="b:1"'
A_SOAK = {"fleet": "f", "job": "soak", "instance": "a:1"}
PRINT = {"fleet": "f", "fingerprint": "ab"}


@dataclass(frozen=True, slots=True)
class Case:
    """series: selector to values. firing: by minute, the alerts that fire then, with their labels."""

    name: str
    series: dict[str, str]
    firing: dict[float, list[tuple[str, dict[str, str]]]]


def alarms(
    channel: str = "absolute",
    verdict: str = "CORRUPT",
    acked: str = "no",
    where: str = SOAK,
    fingerprint: str = "ab",
) -> str:
    """A series of soak_alarms."""
    return (
        f'soak_alarms{{channel="{channel}",shape="shared-prefix",verdict="{verdict}",acked="{acked}",'
        f'fingerprint="{fingerprint}",{where}}}'
    )


CORRUPT = ("SoakCacheCorruption", PRINT)

ON_THE_CACHE = (
    Case(
        "a corruption fires at the first look, and until it is acknowledged",
        {alarms(): "0x3 1x20 0x10"},
        {0.5: [], 1: [CORRUPT], 5: [CORRUPT], 6.5: []},
    ),
    Case(
        "a suspicion, and what is muted, page nobody",
        {
            alarms("paired", "SUSPECT"): "1x20",
            alarms(acked="known"): "1x20",
            alarms(): "0x20",
            alarms("ceiling-amnesia", acked="until"): "1x20",
        },
        {0: [], 3: []},
    ),
    Case(
        "a mute ends the page at once",
        {alarms(): "1x7 0x20", alarms(acked="known"): "0x7 1x20"},
        {1: [CORRUPT], 2: []},
    ),
    Case(
        "replicas with one fingerprint are one alert, another fingerprint another",
        {
            alarms(): "1x20",
            alarms("exact"): "2x20",
            alarms(where=OTHER): "1x20",
            alarms(where=OTHER, fingerprint="cd"): "1x20",
        },
        {1: [CORRUPT, ("SoakCacheCorruption", {"fleet": "f", "fingerprint": "cd"})]},
    ),
    Case(
        "another fleet is another alert",
        {alarms(): "1x20", alarms(where=SOAK.replace('"f"', '"g"')): "1x20"},
        {1: [CORRUPT, ("SoakCacheCorruption", {"fleet": "g", "fingerprint": "ab"})]},
    ),
    Case(
        "scrapes that fail now and then end no alert and start none",
        {alarms(): "1x3 _x3 1x3 _ 1 stale 1 stale stale 1x9"},
        {0: [CORRUPT], 1.25: [CORRUPT], 2.5: [CORRUPT], 2.75: [CORRUPT], 3.25: [CORRUPT], 5: [CORRUPT]},
    ),
    Case(
        "a restart of soak with its state ends no alert: the same one goes on",
        {
            alarms(): "1x7 stale _x15 1x20",
            f"soak_run_start_timestamp_seconds{{{SOAK}}}": "0x7 stale _x15 360x20",
        },
        {1.5: [CORRUPT], 2.25: [CORRUPT], 4: [CORRUPT], 6.5: [CORRUPT]},
    ),
    Case(
        "a restart of a healthy soak pages nobody",
        {
            alarms(): "0x7 stale _x15 0x20",
            f"soak_run_start_timestamp_seconds{{{SOAK}}}": "0x7 stale _x15 360x80",
            f"soak_last_valid_probe_timestamp_seconds{{{SOAK}}}": "0+15x7 stale _x15 0x4 420+15x70",
            f"soak_target_up{{{SOAK}}}": "1x7 stale _x15 1x80",
            f'soak_verdict{{verdict="VACUOUS",{SOAK}}}': "0x7 stale _x15 0x80",
            f"up{{{SOAK}}}": "1x7 0x15 1x80",
        },
        {1: [], 2: [], 4: [], 5.75: [], 6: [], 7: [], 20: []},
    ),
    Case(
        "Prometheus down for three minutes: nothing new when it is back, neither in peace nor in an alarm",
        {
            alarms(): "1x7 _x12 1x20",
            f"soak_target_up{{{SOAK}}}": "1x7 _x12 1x20",
            f"soak_run_start_timestamp_seconds{{{SOAK}}}": "0x7 _x12 0x20",
            f"up{{{SOAK}}}": "1x7 _x12 1x20",
        },
        {1.5: [CORRUPT], 5: [CORRUPT], 8: [CORRUPT]},
    ),
    Case(
        "amnesia and NaN are alerts of their own",
        {alarms("ceiling-amnesia"): "0x3 1x9", alarms("non-finite"): "0x7 1x9", alarms(): "0x20"},
        {
            0.5: [],
            1: [("SoakAmnesia", PRINT)],
            2: [("SoakAmnesia", PRINT), ("SoakNonFiniteLogprobs", PRINT)],
        },
    ),
)

UP = f"up{{{SOAK}}}"
THERE = {UP: "1x200"}

ON_SOAK = (
    Case(
        "a target that is silent for a minute",
        {f"soak_target_up{{{SOAK}}}": "1x7 0x20", **THERE},
        {2: [], 2.75: [], 3.25: [("SoakTargetDown", A_SOAK)]},
    ),
    Case(
        "a target that took soak with it is remembered",
        {f"soak_target_up{{{SOAK}}}": "1x7 0 0 stale", UP: "1x9 0x200"},
        {
            2.5: [],
            4: [("SoakTargetDown", A_SOAK)],
            8: [("SoakTargetDown", A_SOAK), ("SoakDown", A_SOAK)],
            20: [("SoakDown", A_SOAK)],
        },
    ),
    Case(
        "a target that stumbles pages nobody",
        {f"soak_target_up{{{SOAK}}}": "1x3 0 1 0 0 1x3 0 1x20", **THERE},
        {1: [], 1.5: [], 2: [], 3: [], 5: []},
    ),
    Case("soak gone for five minutes", {UP: "1x3 0x60"}, {2: [], 5.75: [], 6.25: [("SoakDown", A_SOAK)]}),
    Case(
        "no soak in sight at all",
        {'up{job="node"}': "1x100"},
        {4: [], 5.25: [("SoakDown", {"job": "soak"})]},
    ),
    Case(
        "a soak that restarts within five minutes", {UP: "1x3 0x18 1x60"}, {4: [], 5.5: [], 6.5: [], 10: []}
    ),
    Case(
        "no valid probe for a quarter of an hour",
        {
            f"soak_last_valid_probe_timestamp_seconds{{{SOAK}}}": "60x100",
            f"soak_run_start_timestamp_seconds{{{SOAK}}}": "0x100",
            **THERE,
        },
        {15: [], 16: [], 17.5: [("SoakProbesStale", A_SOAK)]},
    ),
    Case(
        "never a valid probe since the start",
        {
            f"soak_last_valid_probe_timestamp_seconds{{{SOAK}}}": "0x100",
            f"soak_run_start_timestamp_seconds{{{SOAK}}}": "0x100",
            **THERE,
        },
        {14: [], 16.5: [("SoakProbesStale", A_SOAK)]},
    ),
    Case(
        "probes that go on",
        {
            f"soak_last_valid_probe_timestamp_seconds{{{SOAK}}}": "0+15x100",
            f"soak_run_start_timestamp_seconds{{{SOAK}}}": "0x100",
            **THERE,
        },
        {10: [], 24: []},
    ),
    Case(
        "vacuous for half an hour",
        {f'soak_verdict{{verdict="VACUOUS",{SOAK}}}': "1x200", **THERE},
        {29: [], 31: [("SoakVacuous", A_SOAK)]},
    ),
    Case(
        "vacuous now and then",
        {f'soak_verdict{{verdict="VACUOUS",{SOAK}}}': "1x100 0x2 1x100", **THERE},
        {20: [], 27: [], 40: []},
    ),
)


def requests(ok: str, failed: str, aborted: str = "0x200") -> dict[str, str]:
    """Counters of load by outcome."""
    return {
        f'soak_requests_total{{shape="s",outcome="{outcome}",{SOAK}}}': values
        for outcome, values in (("ok", ok), ("timed_out", failed), ("aborted", aborted))
    }


def first_tokens(all_of_them: str, in_time: str) -> dict[str, str]:
    """A histogram of the time to first token, with the bucket that counts."""
    name = "soak_time_to_first_token_seconds"
    return {
        f'{name}_bucket{{shape="s",le="10.0",{SOAK}}}': in_time,
        f'{name}_count{{shape="s",{SOAK}}}': all_of_them,
    }


FAST, SLOW = ("SoakFailureBudgetBurn", A_SOAK), ("SoakFailureBudgetBurnSlow", A_SOAK)
LATE, LATE_SLOW = ("SoakLatencyBudgetBurn", A_SOAK), ("SoakLatencyBudgetBurnSlow", A_SOAK)

# One value a minute here: objectives look back for hours.
ON_OBJECTIVES = (
    Case("load that is answered", {**requests("0+60x130", "0x130"), **THERE}, {60: [], 120: []}),
    Case(
        "a fifth of the load fails: both budgets burn, and no longer once it has stopped",
        {**requests("0+48x60 2880+60x40", "0+12x60 720x40"), **THERE},
        {60: [FAST, SLOW], 70: [SLOW], 90: []},
    ),
    Case(
        "a tenth fails: only the slow alert",
        {**requests("0+54x100", "0+6x100"), **THERE},
        {60: [SLOW], 90: [SLOW]},
    ),
    Case("one in two hundred fails", {**requests("0+199x100", "0+1x100"), **THERE}, {60: [], 90: []}),
    Case(
        "a bad minute is no page",
        {**requests("0+60x60 3600 3660+60x30", "0x60 60x31"), **THERE},
        {61: [], 62: [], 70: []},
    ),
    Case(
        "a handful of requests says nothing",
        {**requests("0x60", "0 0 1 2 3 4 5 6 7 8 9 10x50"), **THERE},
        {8: [], 20: []},
    ),
    Case(
        "aborts of ours are no failures",
        {**requests("0+40x100", "0x100", "0+20x100"), **THERE},
        {60: [], 90: []},
    ),
    Case(
        "counters that start again with soak",
        {**requests("0+60x25 stale _x2 0+60x60", "0x25 stale _x2 0x60"), **THERE},
        {26: [], 31: [], 40: []},
    ),
    Case(
        "a fifth of the first tokens is late",
        {**first_tokens("0+60x90", "0+48x90"), **THERE},
        {60: [LATE, LATE_SLOW], 85: [LATE, LATE_SLOW]},
    ),
    Case("first tokens in time", {**first_tokens("0+60x90", "0+60x90"), **THERE}, {60: [], 85: []}),
)
