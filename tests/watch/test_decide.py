"""Which issues a history leads to: rule by rule."""

from __future__ import annotations

import re
from typing import Any

import pytest
from msgspec.structs import replace

from kci.config.settings import Decisions, Tell
from kci.watch.causes import cause_of, error_line, excerpt, outage_class
from kci.watch.decide import ActionKind, FailureTracker, IssueAction, decide, people_to_notify
from kci.watch.history import Failure, LegOutcome, LegResult, RecordedRun, group_results, leg_key
from kci.watch.issue_text import mark

POLICY = Decisions()
CPU = leg_key("relu", "torch213-cxx11-cpu-x86_64-linux", "x86_64-linux", "2.13")
CUDA = leg_key("relu", "torch213-cxx11-cu130-x86_64-linux", "x86_64-linux", "2.13", "13.0")
NORM = leg_key("norm", "torch213-cxx11-cpu-x86_64-linux", "x86_64-linux", "2.13")
NEXT = leg_key("relu", "torch214-cxx11-cpu-x86_64-linux", "x86_64-linux", "2.14")
ERROR = "csrc/a.cu:3:1: error: no member named 'x'"


def run(
    number: int, *, catalog: str = "c", commit: str = "", machine: str = "", **legs: str
) -> RecordedRun:
    """A run from what became of legs: `pass`, `fail`, `unknown`, or the text of an error.

    `again` fails in both looks, `flake` in the first one only.
    """
    keys = {"cpu": CPU, "cuda": CUDA, "norm": NORM, "next": NEXT}
    made: dict[str, list[Any]] = {"passed": [], "failed": [], "unknown": [], "earlier": []}
    for name, what in legs.items():
        leg, text = keys[name], ERROR if what in ("fail", "again", "flake") else what
        failure = Failure(leg, text, replay=f"kci build {leg.split(' ')[0]}", machine=machine)
        if what in ("pass", "flake"):
            made["passed"].append(leg)
        elif what == "unknown":
            made["unknown"].append(leg)
        else:
            made["failed"].append(failure)
        if what in ("again", "flake"):
            made["earlier"].append(failure)
    kinds = {kind: tuple(found) for kind, found in made.items()}
    return RecordedRun(number, "2026-11-21T03:17:00+00:00", catalog=catalog, commit=commit, **kinds)


def story(*days: dict[str, str]) -> str:
    """What is done after each day: the kind and number of legs, or `-`."""
    watch = FailureTracker(POLICY)

    def said(one: IssueAction) -> str:
        return f"{'flaky ' if ': flaky: ' in one.title else ''}{one.kind} {len(one.legs)}"

    done = [watch.step(run(number, **day)) for number, day in enumerate(days)]
    return " | ".join(", ".join(map(said, actions)) or "-" for actions in done)


FAIL, AGAIN, FLAKE, PASS = {"cpu": "fail"}, {"cpu": "again"}, {"cpu": "flake"}, {"cpu": "pass"}
UNKNOWN, ONE, TWO = {"cpu": "unknown"}, {"cpu": "error: one"}, {"cpu": "error: two"}
TURNS = [FLAKE, PASS, FLAKE, PASS, FLAKE]
MODES = [{"cpu": f"error: mode {chr(97 + day)} is off"} for day in range(20)]
SAME = [
    {
        "cpu": f"/work/relu/csrc/op.cu:{day}: error: no x",
        "norm": f"/work/norm/csrc/op.cu:{7 + day}: error: no x",
    }
    for day in range(2)
]
STORIES: dict[str, tuple[list[dict[str, str]], str]] = {
    "a second look that says the same": ([PASS, AGAIN, AGAIN, PASS], "- | open 1 | - | close 1"),
    "without one the next run is one": ([PASS, FAIL, FAIL, FAIL, PASS],
        "- | - | open 1 | - | close 1"),
    "a second look that passes": ([PASS, FLAKE, PASS, FLAKE, PASS], "- | - | - | - | -"),
    "a pass in between": ([FAIL, PASS, FAIL, PASS], "- | - | - | -"),
    "unknown, and not there": ([FAIL, UNKNOWN, {}, FAIL], "- | - | - | open 1"),
    "unknown after it was opened": ([AGAIN, UNKNOWN, {}, UNKNOWN, PASS],
        "open 1 | - | - | - | close 1"),
    "one cause in two kernels": (SAME, "- | open 2"),
    "two causes": ([{"cpu": "error: one", "norm": "error: two"}] * 2, "- | open 1, open 1"),
    "a kernel with proof joins": (
        [*[{"cpu": "again", "norm": "pass"}] * 2, {"cpu": "fail", "norm": "again"}],
        "open 1 | - | update 2",
    ),
    "legs of a kernel follow": ([AGAIN, {"cpu": "fail", "cuda": "fail"}], "open 1 | update 2"),
    "another kernel needs its own proof": ([AGAIN, {"cpu": "fail", "norm": "fail"}], "open 1 | -"),
    "closed when the last leg has passed": (
        [{"cpu": "again", "norm": "again"}, {"cpu": "pass", "norm": "fail"},
            {"cpu": "pass", "norm": "unknown"},
         {"norm": "pass"}],
        "open 2 | update 1 | - | close 2",
    ),
    "another error needs its own proof": ([ONE, ONE, TWO, TWO, ONE], "- | open 1 | - | open 1 | -"),
    "errors that take turns": ([ONE, TWO, ONE], "- | - | open 1"),
    "something else each time": (MODES[:5], "- | - | - | open 1 | -"),
    "it keeps turning green": (TURNS, "- | - | - | - | flaky open 1"),
    "failing twice is what it does": ([*TURNS, AGAIN, PASS],
        "- | - | - | - | flaky open 1 | - | -"),
    "it stays broken": ([*TURNS, AGAIN, AGAIN, AGAIN],
        "- | - | - | - | flaky open 1 | - | - | open 1"),
    "flaky without second looks": ([FAIL, PASS] * 3, "- | - | - | - | - | flaky open 1"),
    "flaky in the legs of a kernel": (
        [{"cpu": "flake", "cuda": "pass"}, {"cpu": "pass", "cuda": "flake"},
            {"cpu": "flake", "cuda": "pass"}],
        "- | - | flaky open 1",
    ),
    "in two kernels it is two things": ([FLAKE, {"norm": "flake"}] * 2, "- | - | - | -"),
    "proven and fixed is no flake": (
        [AGAIN, PASS, AGAIN, PASS, AGAIN], "open 1 | close 1 | open 1 | close 1 | -",
    ),
}  # fmt: skip
"""What becomes of the legs day by day, and what is done."""


@pytest.mark.parametrize("name", STORIES)
def test_what_is_done_day_by_day(name: str) -> None:
    days, done = STORIES[name]
    assert story(*days) == done


def test_what_is_flaky_has_one_issue_and_is_closed_in_the_end() -> None:
    assert story(*TURNS, *[PASS] * 20).count("flaky close 1") == 1
    said = story(*({"cpu": "pass"} if day % 2 else mode for day, mode in enumerate(MODES)))
    assert said.replace(" | ", "").strip("-") == "flaky open 1", "whatever it says each time"


def test_a_second_look_on_the_same_machine_proves_nothing() -> None:
    watch = FailureTracker(POLICY)
    assert watch.step(run(1, cpu="again", machine="gpu-1")) == []
    (other_day,) = watch.step(run(2, cpu="fail", machine="gpu-1"))
    assert other_day.kind is ActionKind.OPEN
    assert len(FailureTracker(POLICY).step(run(1, cpu="again", machine=""))) == 1


def test_one_cause_after_two_moves_is_two_issues() -> None:
    """What moved is a part of what an issue is about: two catalogs that break two kernels alike are
    fixed apart.
    """
    watch = FailureTracker(POLICY)
    watch.step(run(1, cpu="pass", norm="pass"))
    (one,) = watch.step(run(2, catalog="d", cpu="again", norm="pass"))
    (two,) = watch.step(run(3, catalog="e", cpu="again", norm="again"))
    assert (one.kind, two.kind) == (ActionKind.OPEN, ActionKind.OPEN)
    assert "What changed: the catalog, from `c` to `d`. It last passed in run 1." in one.body
    assert two.legs == (NORM,)
    assert one.id != two.id
    (more,) = watch.step(run(4, catalog="e", cpu="again", cuda="again", norm="again"))
    assert (more.id, len(more.legs)) == (one.id, 2), "a kernel that has the issue stays with it"


def test_a_leg_that_a_catalog_brings_fails_because_of_that_catalog() -> None:
    watch = FailureTracker(POLICY)
    watch.step(run(1, norm="pass"))
    (one,) = watch.step(run(2, norm="again"))
    (two,) = watch.step(run(3, catalog="d", norm="again", next="again"))
    assert (one.legs, two.kind, two.legs) == ((NORM,), ActionKind.OPEN, (NEXT,))


def test_a_leg_that_the_catalog_no_longer_has_waits_for_a_pass_of_its_successor() -> None:
    days = [run(1, cpu="again")]
    days += [run(number, catalog="d", cuda="pass") for number in (3, 4)]
    days.append(run(5, catalog="d", next="pass"))
    watch = FailureTracker(POLICY)
    done = [[str(action.kind) for action in watch.step(made)] for made in days]
    assert done == [["open"], [], ["update"], ["close"]]


def test_who_is_told_is_data() -> None:
    tell = (Tell(("@a",)), Tell(("@b",), kernel="norm"), Tell(("@c", "@a"), variant="*-cu1*"))
    assert people_to_notify(tell, [CPU]) == ("@a",)
    assert people_to_notify(tell, [CPU, NORM]) == ("@a", "@b")
    assert people_to_notify(tell, [CUDA]) == ("@a", "@c")
    assert people_to_notify((), [CPU]) == ()


def test_decide_is_what_the_last_run_leads_to() -> None:
    days = [run(0, cpu="pass"), run(1, cpu="again", cuda="pass")]
    (action,) = decide(days, FailureTracker(POLICY))
    assert action.kind is ActionKind.OPEN
    assert mark(action.id, action.since) in action.body
    assert "kci build relu" in action.body
    assert CPU in action.body
    header = "\n\n| kernel | backend | fail | pass again | torch |\n|---|---|---|---|---|\n"
    assert f"{header}| relu | cpu | 1 |  | 2.13 |" in action.body, "without a header it is no table"
    assert decide([*days, run(3, cpu="fail")], FailureTracker(POLICY)) == []
    assert decide([], FailureTracker(POLICY)) == []


def test_what_is_new_is_looked_at_again_in_two_legs_of_a_kernel() -> None:
    watch = FailureTracker(POLICY)
    watch.step(run(1, cpu="pass", cuda="pass", norm="pass", next="pass"))
    broken = run(2, cpu="fail", cuda="fail", norm="fail", next="fail")
    assert watch.suspects(broken) == sorted([CPU, CUDA, NORM]), "two of one kernel, of two backends"
    earlier = tuple(one for one in broken.failed if one.leg in (CPU, CUDA, NORM))
    seen = replace(broken, earlier=earlier)
    assert watch.suspects(seen) == [NEXT]
    (opened,) = watch.step(replace(seen, failed=broken.failed))
    # The leg that was looked at once follows the others.
    assert opened.legs == tuple(sorted([CPU, CUDA, NORM, NEXT]))
    later = run(3, cpu="fail", norm="error: something else")
    assert watch.suspects(later) == [NORM], "what has an issue is no suspect"


@pytest.mark.parametrize(
    ("log", "shown"),
    [
        ("https://github.com/acme/kernels/actions/runs/1", True),
        ("https://x.org/a b", False), ("https://x.org/[a](https://y.org)", False),
        ("<img src=x>", False), ("javascript:x", False), ("https://x.org/" + "a" * 500, False),
    ],
)  # fmt: skip
def test_a_log_is_a_link_or_left_out(log: str, shown: bool) -> None:
    made = [replace(run(number), failed=(Failure(CPU, ERROR, log),)) for number in range(2)]
    (action,) = decide(made, FailureTracker(POLICY))
    assert (f"Log: {log}\n" in action.body) is shown
    assert (log in action.body) is shown


HOSTILE = {
    "long": "error: " + "x" * 10**6,
    "lines": "\n".join(f"error: {number}" for number in range(10**5)),
    "control": "error: \x1b]0;title\x07\x00\x08\u202e\u2066 hidden",
    "markdown": "error: `x` ](https://evil.example) | a | <!-- --> </details> <img src=x> # fixes "
    "#1",
    "mentions": "error: @everyone @acme/kernels " * 5000,
    "backtracking": "error: " + ":1:1" * 10**5,
    "symbol": "undefined symbol: _Z" + "N" * 10**5,
}


@pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE)
def test_a_hostile_line_of_a_log_is_told_as_text(text: str) -> None:
    result = LegResult(
        run=1, at="2026-11-21T03:17:00+00:00", kernel="relu", variant="torch-cpu",
        system="x86_64-linux", outcome=LegOutcome.FAILED, error=text, catalog=text[:5000],
        commit=text[:5000],
    )  # fmt: skip
    (action,) = decide(group_results([result, replace(result, run=2)]), FailureTracker(POLICY))
    assert len(action.title) <= 200
    assert len(action.body) < 10_000
    assert re.sub("[\n\u200b]", "", action.title + action.body).isprintable()
    assert "@everyone" not in action.title + action.body
    assert action.body.count("-->") == 1
    told = action.body.splitlines()
    lines = [line for line in told[1:] if not line.startswith("    ")]
    outside = " ".join(re.sub(r"`[^`]*`", "", line) for line in lines)
    assert "evil" not in outside
    assert "fixes #1" not in outside
    assert outside.count("</details>") == 1


# --- causes ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("one", "other", "cause"),
    [
        ("2026-11-14T08:20:20Z it is stale", "2026-11-15T03:17:01.123Z it is stale", "it is stale"),
        ("2026/11/14 08:20:20 it is stale", "[2026-11-15 03:17:01,123] it is stale", "it is stale"),
        ("Nov 14 08:20:20 host-1 kernel[12]: it is stale", "Nov  5 03:17:01 b nvrm[9]: it is stale",
            "it is stale"),
        ("E1114 03:17:22.123456 4711 a.cpp:88] empty", "E1115 03:17:23.000001 1 a.cpp:90] empty",
        "empty"),
        ("[rank0]:[E1114 03:17:22.12 PG.cpp:607] empty",
            "[rank0]:[E1115 04:17:22.13 PG.cpp:7] empty", "empty"),
        ("2026-11-14 03:17:22.1: E a/b.cc:3] empty", "2026-11-15 03:17:22.2: E a/b.cc:4] empty",
        "empty"),
        ("1731560240.12 it is stale", "1731646640.5 it is stale", "it is stale"),
        ("x at 1731560240.12", "x at 1731646640.5", "x at <time>"),
        ("cache of Sat Nov 14 03:17:22 2026 gone", "cache of Sun Nov 15 03:17:22 2026 gone",
            "cache of <time> gone"),
        ("x of Sat, 14 Nov 2026 03:17:22 GMT gone", "x of 14-Nov-2026 03:17:22 +0000 gone",
            "x of <time> gone"),
        ("cache 20261114T031722Z gone", "cache 20261115_041722 gone", "cache <time> gone"),
        ("cache of 03:17:22 gone", "cache of 2026-11-14 gone", "cache of <time> gone"),
        ("no 3f2a004d-1b2c-4d5e-8f90-123456789abc", "no AF2A004D-1B2C-4D5E-8F90-123456789ABC",
            "no <id>"),
        ("torch 2.15.0.dev20261114+cu130", "torch 2.15.0.dev20261115+gitdf6a0b2",
            "torch 2.15.0.dev"),
        ("torch 2.15.0a0+git0a1b2c3 is bad", "torch 2.15.0a0+gitdeadbee is bad",
            "torch 2.15.0a0 is bad"),
        ("kci v1.2-34-g0a1b2c3 is bad", "kci v1.2-35-gdeadbee is bad", "kci v1.2 is bad"),
        ("digest 0A1B2C3D4E5F is bad", "digest 0a1b2c3d4e5f is bad", "digest # is bad"),
        ("OSError: /tmp/tmpab_12cde", "OSError: /tmp/tmpzzzzzzzz", "OSError: /<temporary>"),
        ("cannot open /tmp/ccAbCd12.s", "cannot open /tmp/ccZZZZZZ.s",
            "cannot open /<temporary>.s"),
        ("cannot open /tmp/kci-x8s0dq2/a", "cannot open /tmp/kci-9abcdef/a", "cannot open /a"),
        ("cannot enter /tmp/kci-x8s0_q2a", "cannot enter /var/tmp/kci-a-abc1_fgh",
            "cannot enter /<temporary>"),
        ("[pid 4711] bad", "[pid 12] bad", "[pid #] bad"),
        ("no way to 10.1.2.3:443 today", "no way to 172.16.0.9:8080 today",
            "no way to <address> today"),
        ("gave up after 12.5s and 300ms", "gave up after 9s and 12ms", "gave up after #s and #ms"),
    ],
)  # fmt: skip
def test_what_is_otherwise_each_night_is_no_part_of_a_cause(
    one: str, other: str, cause: str
) -> None:
    assert cause_of(one, "relu", "v") == cause_of(other, "relu", "v") == cause


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("csrc/relu.cu:3:1: error: no x", "csrc/relu.cu:99: error: no x"),
        ("C:\\a\\op.cpp(12,3): error C2039: no x", "C:\\other\\op.cpp(1,1): error C2039: no x"),
        ("error: bad thing at 0x7fff12", "error: bad thing at 0xdeadbeef"),
        ("FAILED: [  5 of 17] error in step 3", "FAILED: [ 12 of 40] error in step 4"),
        ("\x1b[31merror: red\x1b[0m", "error: red"),
        ("error: off by 0.0312 in 12.125 s", "error: off by 1.5e-3 in 7 s"),
        ("note\nmore\nerror: the first", "error: the first\nerror: the second"),
        ("/home/a/relu/x.so: undefined symbol: f", "/root/b/relu/x.so: undefined symbol: f"),
    ],
)
def test_the_same_cause(one: str, other: str) -> None:
    assert cause_of(one, "relu", "v") == cause_of(other, "relu", "v")


@pytest.mark.parametrize(
    ("one", "other"),
    [("error: no member 'a'", "error: no member 'b'"),
        ("error: needs CUDA 13.0", "error: needs CUDA 12.6"),
     ("error: sm_90 x", "error: sm_100 x"), ("ImportError: a", "RuntimeError: a"),
     ("torch 2.14.0 is bad", "torch 2.15.0 is bad"), ("no /tmp/lock", "no /tmp/cache"),
     ("unknown name tmp_storage", "unknown name tmp_variance")],
)  # fmt: skip
def test_different_causes(one: str, other: str) -> None:
    assert cause_of(one, "relu", "v") != cause_of(other, "relu", "v")


@pytest.mark.parametrize(
    "text", ["", "\n\n", "\x00\x01", "a" * 10**6, "/" * 10**5, "error " * 10**5, "1:" * 10**5]
)
def test_any_text_has_a_cause_of_bounded_length(text: str) -> None:
    assert 0 < len(cause_of(text, "relu", "v")) <= 1100
    assert len(error_line(text)) <= 1000


@pytest.mark.parametrize(
    "text",
    [
        "csrc/a.cu:3:1: error: 'ECONNRESET' was not declared in this scope",
        "csrc/a.cu(3): error: static assertion failed: timed out waiting for connection",
        "2026-11-14T03:17:22Z csrc/a.cpp:3:1: error: no member named 'no_space_left_on_device' in "
        "'disk full'",
        "ld: a.o: undefined reference to `SSL_connect(char const*, ssl_connect)'",
        "csrc/a.cpp:1:10: fatal error: curl/oom_kill.h: No such file or directory",
    ],
)
def test_what_a_compiler_says_of_a_source_is_no_outage(text: str) -> None:
    assert not outage_class(text)


def test_an_excerpt_is_around_the_line_that_is_told() -> None:
    long = f"{'x' * 300} error: here"
    text = "\n".join([*(f"line {number}" for number in range(20)), long, "after"])
    assert error_line(text) == long
    assert excerpt(text).splitlines() == ["line 18", "line 19", "x" * 200, "after"]
