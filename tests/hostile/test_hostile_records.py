"""Records that are hostile or that lie: each is refused or contained, by the command or action that
reads it, in words.

A record comes from a machine that ran foreign code, a branch that others write, or a service. What
reads it says where and why, ends with an exit code of kci's, and writes nothing where the record
would have it.
"""

from __future__ import annotations

import io
import os
import subprocess
import tarfile
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from importlib import import_module
from itertools import product
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

import msgspec
import pytest

from action_inputs import inputs_of
from buildkit import noarch_kernel
from cli.runner import Result, ended, kci
from kci.actions.common import run_action
from kci.errors import FindingsError, UnsafeError
from kci.plan.plan import KernelPlan, Plan
from kci.run.gate import TreeIndex, TreePlace
from kci.run.records import KernelRecord, TestRecord, VariantFailure
from kci.tree.manifest import FILE_NAME as MANIFEST
from kci.tree.manifest import Manifest
from kci.tree.metadata import FILE_NAME as METADATA
from kci.utils.bounded_json import decode_json
from kci.watch.history import HistoryBranch, RecordedRun
from kci.watch.issue_tracker import Account, GitHubApi
from planning import leg
from variants import CPU, CUDA, leg_of, make_artifact, make_variant

DEEP = 100_000
Spoil = Callable[[bytes], bytes]

HOSTILE: dict[str, Spoil] = {
    "nothing but brackets": lambda _: b"[" * DEEP,
    "brackets under a key of tomorrow": lambda good: (
        good[:-1] + b',"x":' + b"[" * DEEP + b"]" * DEEP + b"}"
    ),
    "objects under a key of tomorrow": lambda good: (
        good[:-1] + b',"x":' + b'{"a":' * DEEP + b"1" + b"}" * DEEP + b"}"
    ),
    "not a number": lambda good: good[:-1] + b',"schema":NaN}',
    "more than any number": lambda good: good[:-1] + b',"schema":1e400}',
    "an integer of 5,000 digits": lambda good: good[:-1] + b',"schema":' + b"9" * 5000 + b"}",
    "half of a surrogate pair": lambda good: good[:-1] + b',"kernel":"\\ud800"}',
    "a byte order mark": lambda good: b"\xef\xbb\xbf" + good,
    "zeros behind it": lambda good: good + b"\0" * 512,
    "zeros in it": lambda good: good[: len(good) // 2] + b"\0\0\0" + good[len(good) // 2 :],
    "cut off": lambda good: good[: len(good) // 2],
    "empty": lambda _: b"",
    "no UTF-8": lambda good: b"\xff\xfe" + good,
    "more than 64 MB": lambda good: good + b" " * (65 << 20),
    "a list": lambda good: b"[" + good + b"]",
    "a schema of tomorrow": lambda good: good[:-1] + b',"schema":2}',
    "two answers": lambda good: good + good,
}
NOT_FILES: dict[str, Callable[[Path], None]] = {
    "a link to /etc/passwd": lambda path: path.symlink_to("/etc/passwd"),
    "a pipe": os.mkfifo,
    "a folder": lambda path: path.mkdir(),
}


class Place(msgspec.Struct, frozen=True):
    """A record and what reads it."""

    good: bytes
    path: str
    """Where it lies, below the folder of the test."""
    read: Callable[[Path], Result]
    """Has it read; it raises whatever a user would see as a traceback."""
    says: str = ""
    """Part of what is said; its path by default."""


@pytest.fixture(autouse=True)
def runner(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A job of GitHub's, as actions see it."""
    folders = {"RUNNER_TEMP": "temp", "KCI_CACHE": "cache"}
    files = {"GITHUB_OUTPUT": "output", "GITHUB_STEP_SUMMARY": "summary"}
    for name, place in (folders | files).items():
        monkeypatch.setenv(name, str(tmp_path / place))
    for name, value in {"REPOSITORY": "acme/kernels", "RUN_ID": "7", "RUN_ATTEMPT": "1"}.items():
        monkeypatch.setenv(f"GITHUB_{name}", value)
    (tmp_path / "temp").mkdir()


RECORDS = "temp/kci-records"
"""Where the action has fetched the records of a run."""


def action(name: str, **inputs: str | Path) -> Result:
    """Run an action here."""
    module, out = import_module(f"kci.actions.{name}"), io.StringIO()
    try:
        given = mock.patch.dict(os.environ, inputs_of(**inputs))
        with given, redirect_stdout(out), redirect_stderr(out):
            run_action(module.main)
    except SystemExit as ended:
        return Result(int(ended.code or 0), out.getvalue(), "")
    raise AssertionError("an action ends its process")


def gate(folder: Path) -> Result:
    """The gate of a run whose one leg is fine; a record that is there already is the
    hostile one.
    """
    records = folder / RECORDS
    for name, good in {"kci-plan.json": PLAN, "kci-record.json": RECORD}.items():
        if not os.path.lexists(records / name):
            (records / name).write_bytes(good)
    return action("gate", results="plan=success")


def merge_action(folder: Path) -> Result:
    make_artifact(folder / "artifacts" / "one", make_variant(folder / "built", CPU))
    places = {"artifacts": folder / "artifacts", "into": folder / "tree"}
    return action("merge", **places, kernel="gated-norm", allow_partial="false")


def merge_plan(folder: Path) -> Result:
    make_artifact(folder / "artifacts", make_variant(folder / "built", CPU))
    options = ("--into", folder / "tree", "--plan", folder / "plan.json")
    return kci("merge", folder / "artifacts", *options)


def verify_tree(folder: Path) -> Result:
    for name in (CPU, CUDA):
        if not (folder / "tree" / name / "__init__.py").exists():
            made = make_variant(folder / "made", name)
            (folder / "tree" / name).mkdir(parents=True, exist_ok=True)
            for file in made.iterdir():
                if not os.path.lexists(folder / "tree" / name / file.name):
                    file.rename(folder / "tree" / name / file.name)
    return kci("verify", folder / "tree")


def plan_durations(folder: Path) -> Result:
    return kci("plan", noarch_kernel(folder / "kernel"), "--durations", folder / "durations.json")


def recorded(folder: Path) -> Result:
    """A history with one run that is good, besides the hostile one."""
    (folder / "history" / "0000000000000000001-1-aa.json").write_bytes(HISTORY)
    return kci("compat", "report", "--history", folder / "history")


EMPTY = Manifest("gated-norm", 1, complete=True, planned=(), present=(), missing=())
PLAN = msgspec.json.encode(
    Plan(1, "release", (KernelPlan("gated-norm", "k", 1, (CPU,)),), (leg(CPU, "gated-norm"),))
)
RECORD = msgspec.json.encode(KernelRecord("gated-norm", 1, complete=True, present=(CPU,)))
TEST = msgspec.json.encode(TestRecord("gated-norm", "test-cpu", 1, passed=True))
FAILURE = msgspec.json.encode(VariantFailure("gated-norm", CUDA, CUDA, 1, "error: no", "kci build"))
INDEX = msgspec.json.encode(TreeIndex({"gated-norm": TreePlace("1", 20_000, EMPTY)}, 20_000))
HISTORY = b'{"run":1,"at":"2026-11-21T03:17:00+00:00","passed":["k v s - -"],"schema":1}'
RESULT = (
    b'{"schema":1,"run":1,"at":"2026-11-21T03:17:00+00:00","kernel":"relu","variant":"v","system":"s",'
    b'"outcome":"passed"}'
)

PLACES: dict[str, Place] = {
    "the record of a kernel, by the gate": Place(RECORD, f"{RECORDS}/kci-record.json", gate),
    "the record of a test, by the gate": Place(TEST, f"{RECORDS}/kci-test.json", gate),
    "the index of trees, by the gate": Place(INDEX, f"{RECORDS}/kci-trees.json", gate),
    "the plan of a run, by the gate": Place(PLAN, f"{RECORDS}/kci-plan.json", gate),
    "why a variant failed, by the merge": Place(
        FAILURE, "artifacts/kci-failure-x.json", merge_action
    ),
    "a result, by kci compat record": Place(
        RESULT,
        "results/1.json",
        lambda folder: kci("compat", "record", folder / "results", "--history", folder / "h"),
    ),
    "a line of a history, by kci compat report": Place(
        HISTORY, "history/0000000000000000001-1-bb.json", recorded
    ),
}
NAMED: dict[str, Place] = {
    "a plan, by kci merge": Place(PLAN, "plan.json", merge_plan),
    "durations, by kci plan": Place(
        b'{"schema":1,"durations":[]}', "durations.json", plan_durations
    ),
}
"""Files that a user names, which may be links."""
TREES: dict[str, Place] = {
    "the manifest of a tree, by kci verify": Place(
        msgspec.json.encode(EMPTY), f"tree/{MANIFEST}", verify_tree
    ),
    "the metadata of a variant, by kci verify": Place(
        b'{"id":"x"}', f"tree/{CPU}/{METADATA}", verify_tree
    ),
}


ALL = {**PLACES, **NAMED, **TREES}


def check(name: str, folder: Path, spoil: Callable[[Path, bytes], object]) -> None:
    """What is spoiled where a record lies, which it has as it should be."""
    place = ALL[name]
    path = folder / place.path
    path.parent.mkdir(parents=True, exist_ok=True)
    spoil(path, place.good)
    done = place.read(folder)
    said = done.stdout + done.stderr
    assert done.code in (1, 2, 5), said[-2000:]
    assert Path(place.path).name in said, said[-2000:]
    assert "root:x:0:0" not in said, "what a link leads to is shown to nobody"
    assert "Traceback" not in said
    assert len(said) < 20_000, "what is hostile is not printed"


READERS = ("the record of a kernel, by the gate", "the metadata of a variant, by kci verify")
"""One place of each reader of JSON, for all that is hostile."""
OF_EACH_PLACE = ("objects under a key of tomorrow", "more than 64 MB", "a list")


@pytest.mark.parametrize(
    ("name", "spoiled"),
    sorted({*product(READERS, HOSTILE), *product(ALL, OF_EACH_PLACE)}),
)
def test_what_no_record_looks_like_is_refused_by_name(
    tmp_path: Path, name: str, spoiled: str
) -> None:
    check(name, tmp_path, lambda path, good: path.write_bytes(HOSTILE[spoiled](good)))


MAY_BE = [("a result, by kci compat record", "a folder")]
"""There, a folder may be called anything."""


@pytest.mark.parametrize(
    ("name", "kind"), sorted({*product([*PLACES, *TREES], NOT_FILES)} - {*MAY_BE})
)
def test_what_is_no_file_is_not_read(tmp_path: Path, name: str, kind: str) -> None:
    check(name, tmp_path, lambda path, _good: NOT_FILES[kind](path))


# --- records that lie -----------------------------------------------------------------------------


OTHER_TREE = msgspec.json.decode(msgspec.json.encode(EMPTY)) | {"kernel": "relu"}
LIES_OF_A_RECORD = [
    ({"kernel": "relu"}, "no job that merges it left a record"),
    ({"kernel": "../gated-norm"}, "is not a record of a run"),
    ({"attempt": 0}, "is not a record of a run"),
    ({"error": "x" * 5000}, "is not a record of a run"),
    ({"manifest": OTHER_TREE}, "has the tree of 'relu'"),
    ({"present": []}, CPU),  # planned, and neither built nor failed
]


@pytest.mark.parametrize(("lie", "told"), LIES_OF_A_RECORD)
def test_the_gate_believes_no_record_of_something_else(
    tmp_path: Path, lie: dict[str, object], told: str
) -> None:
    (tmp_path / RECORDS).mkdir()
    said = msgspec.json.encode(msgspec.json.decode(RECORD) | lie)
    (tmp_path / RECORDS / "kci-record.json").write_bytes(said)
    assert told in gate(tmp_path).stdout


def test_a_history_that_is_a_link_is_not_written_through(tmp_path: Path) -> None:
    """Whoever can push to the branch could have the job write wherever it may."""
    origin, work, outside = tmp_path / "origin.git", tmp_path / "work", tmp_path / "outside"
    outside.mkdir()
    for command in (["init", "-q", "--bare", origin], ["init", "-q", work]):
        subprocess.run(["git", *command], check=True)
    (work / "history").symlink_to(outside)
    who = ["-c", "user.name=a", "-c", "user.email=a@b"]
    push = ["push", "-q", str(origin), "HEAD:refs/heads/h"]
    for command in (["add", "."], [*who, "commit", "-qm", "x"], push):
        subprocess.run(["git", "-C", work, *command], check=True)
    runs = [decode_json(HISTORY, RecordedRun)]
    with pytest.raises(UnsafeError, match="history on the branch h is a link"):
        HistoryBranch(str(origin), "h").record(runs)
    assert not list(outside.iterdir())


HARMLESS = ("more than 64 MB", "a schema of tomorrow", "more than any number")
HARMLESS += ("an integer of 5,000 digits",)
"""Where keys that are not known are passed over."""
ANSWERS = {name: spoil(b'{"login":"a"}') for name, spoil in HOSTILE.items() if name not in HARMLESS}


@pytest.mark.parametrize("answer", ANSWERS)
def test_an_answer_of_github_that_cannot_be_read_is_a_finding(answer: str) -> None:
    said = SimpleNamespace(returncode=0, stdout=ANSWERS[answer], stderr=b"")
    with pytest.raises(FindingsError, match="cannot read GitHub's answer"):
        GitHubApi("a/b", run=lambda *_, **__: said).get(Account, "x")


def merged(folder: Path, spoil: Spoil) -> Result:
    """An artifact whose `leg.json` is spoiled, merged."""
    made = make_variant(folder / "built", CPU)
    text = spoil(msgspec.json.encode(leg_of(made)))
    artifact = folder / "artifacts" / f"kci-gated-norm-{CPU}.tar"
    artifact.parent.mkdir(exist_ok=True)
    with tarfile.open(artifact, "w") as tar:
        info = tarfile.TarInfo("leg.json")
        info.size = len(text)
        tar.addfile(info, io.BytesIO(text))
        tar.add(made, CPU)
    return kci("merge", artifact.parent, "--into", folder / "tree")


LIES_OF_A_LEG: dict[str, tuple[dict[str, object], str]] = {
    "another kernel": ({"kernel": "relu"}, "find out who renamed it"),
    "another version": ({"version": 7}, "contradicts itself about the version"),
    "another variant": ({"variant": CUDA}, CUDA),
    "another digest": ({"digest": "0" * 64}, "truncated or corrupt"),
    "a variant above": ({"variant": "../../escape"}, "invalid"),
    "a kernel of 10,000 letters": ({"kernel": "k" * 10_000}, "find out who renamed it"),
}


@pytest.mark.parametrize("name", PLACES)
def test_what_a_link_leads_to_is_not_taken_for_a_record(tmp_path: Path, name: str) -> None:
    """Whoever puts it there would have what lies elsewhere on the machine counted, shown or passed
    on.
    """

    def lead_elsewhere(path: Path, good: bytes) -> None:
        (tmp_path / "elsewhere").write_bytes(good)
        path.symlink_to(tmp_path / "elsewhere")

    check(name, tmp_path, lead_elsewhere)


@pytest.mark.parametrize("lie", LIES_OF_A_LEG)
def test_what_a_leg_says_of_itself_is_held_against_its_files(tmp_path: Path, lie: str) -> None:
    changes, said = LIES_OF_A_LEG[lie]
    lying = merged(tmp_path, lambda good: msgspec.json.encode(msgspec.json.decode(good) | changes))
    ended(lying, 1, said)
    assert not (tmp_path / "tree").exists()
    assert not (tmp_path / "escape").exists()


@pytest.mark.parametrize("spoiled", OF_EACH_PLACE)
def test_a_leg_that_no_record_looks_like_is_refused_by_merge(tmp_path: Path, spoiled: str) -> None:
    done = merged(tmp_path, HOSTILE[spoiled])
    assert done.code in (1, 5), done.stderr
    assert "leg.json" in done.stderr
    assert not (tmp_path / "tree").exists()
