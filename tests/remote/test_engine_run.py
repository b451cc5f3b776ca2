"""Driving a run: what is submitted, started again, refused, cancelled and merged, whatever the engine says."""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import ModuleType

import msgspec
import pytest

from buildkit import write_tree
from cli.runner import Result, kci
from conftest import ROOT
from kci.cli.run import _stopped
from kci.config.engine_settings import EngineKind, EngineSettings
from kci.config.values import Backend, System
from kci.errors import ClientError, FindingsError, UnfinishedBuildError, UsageError
from kci.matrix.names import Kind
from kci.plan.machines import UNKNOWN
from kci.plan.plan import Leg
from kci.processes.process import silent
from kci.remote import engine_run
from kci.remote.engine_choice import SentLeg, choose_engines, share_out
from kci.remote.engine_plan import EngineRequest, EngineRun, open_run, prepare_run
from kci.remote.engine_run import Driver, driving
from kci.remote.job import JobState, JobStatus, write_job
from kci.remote.leg_results import merge_run
from kci.remote.local_engine import LocalEngine
from kci.remote.protocol import Batch, EngineAwayError, EngineHome, Handles
from kci.remote.run_state import JOURNAL_FILE, Journal, JournalLine, LegPhase, RunEvent
from kci.tree.manifest import read_manifest
from kci.workspace.workspace import Choice, open_workspace
from remote.background import Client
from remote.slurm_cluster import wait_for
from remote.split_kernel import SOURCES

NAMES = ["torch-cpu", "torch-cuda", "torch-rocm"]


@pytest.fixture
def kernel_dir(tmp_path: Path) -> Path:
    ignored = shutil.ignore_patterns("build", "__pycache__")
    return Path(shutil.copytree(ROOT / "examples" / "swiglu", tmp_path / "swiglu", ignore=ignored))


class Pretended:
    """An engine whose jobs do what a test says: `ends` by leg is what `poll` answers, one after the other."""

    pause = 0.0
    chains = False

    def __init__(self, home: EngineHome) -> None:
        self.home = home
        self.known: dict[str, str] = {}
        self.runs: list[str] = []
        self.cancelled: list[str] = []
        self.said: dict[str, list[JobStatus]] = {}
        self.trouble: list[Exception] = []
        self.forgets_reply = False

    def submit(self, batch: Batch) -> Handles:
        if self.trouble:
            raise self.trouble.pop(0)
        for job in batch.jobs:
            assert job.name not in self.known, "submitted twice"
            write_job(self.home.job(job.name), job)
            self.known[job.name] = f"handle-{len(self.known)}"
            self.runs.append(job.name)
        if self.forgets_reply:
            self.forgets_reply = False
            raise EngineAwayError("the reply was lost")
        return {job.name: self.known[job.name] for job in batch.jobs}

    def find(self, batch: Batch) -> Handles:
        return {job.name: self.known[job.name] for job in batch.jobs if job.name in self.known}

    def poll(self, handles: Handles) -> Mapping[str, JobStatus]:
        if self.trouble:
            raise self.trouble.pop(0)
        return {name: self._next(name) for name in handles}

    def _next(self, name: str) -> JobStatus:
        answers = self.said.get(name) or self.said.get(name.rpartition("-")[2], [])
        return answers.pop(0) if answers else JobStatus(JobState.ENDED)

    def cancel(self, handles: Handles) -> None:
        self.cancelled += handles

    def read(self, name: str, handle: str, file: str) -> Iterator[bytes]:
        assert handle == self.known[name]
        raise FileNotFoundError(file)

    def close(self) -> None:
        pass


Made = Callable[..., Driver]


@pytest.fixture
def pretended(kernel_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Driver, Pretended]]:
    """One leg on a pretended engine."""
    folder, run = prepared(kernel_dir, tmp_path, only="torch-cpu")
    engine = Pretended(EngineHome(run.id, folder))
    monkeypatch.setattr(engine_run, "open_engine", lambda _settings, _home: engine)
    with driving(folder, run, lambda *_: None, lambda _line: None) as driver:
        yield driver, engine


def prepared(kernel_dir: Path, tmp_path: Path, *, only: str = "*", **request: object) -> tuple[Path, EngineRun]:
    wanted = EngineRequest(choice=Choice(only=(only,)), engine="local", **request)  # type: ignore[arg-type]
    return prepare_run(open_workspace([kernel_dir]), wanted, tmp_path / "cache")


def phases(driver: Driver) -> list[tuple[str, int]]:
    return [(leg.phase.value, leg.attempts) for leg in driver.journal.legs.values()]


def lost(times: int) -> list[JobStatus]:
    return [JobStatus(JobState.LOST, "the node died")] * times


def test_a_lost_leg_is_started_again_and_not_for_ever(pretended: tuple[Driver, Pretended]) -> None:
    driver, engine = pretended
    engine.said = {"1": lost(2), "2": lost(2), "3": lost(2)}
    driver.drive()
    assert phases(driver) == [("failed", 3)]
    assert [name.rpartition("-")[2] for name in engine.runs] == ["1", "2", "3"]
    assert engine.cancelled == engine.runs  # whatever is left of an attempt ends before the next one
    assert "lost 3 times" in driver.journal.legs["swiglu/torch-cpu"].last.reason


@pytest.mark.parametrize(
    ("kind", "carries"), [("local", False), ("slurm", False), ("command", True), ("hf-jobs", True)]
)
def test_engines_that_keep_no_cache_hand_every_legs_objects_back(tmp_path: Path, kind: str, carries: bool) -> None:
    kernel = write_tree(tmp_path / "split", {**SOURCES, "kci.toml": f'[engines.there]\ntype = "{kind}"\n'})
    wanted = EngineRequest(choice=Choice(only=("*stable*cpu-x86_64-linux",)), engine="there")
    _, run = prepare_run(open_workspace([kernel]), wanted, tmp_path / "cache")
    (job,) = (leg.job for leg in run.legs)
    assert bool(job.pack) is carries
    assert (f"--objects-to={{out}}/{job.pack}" in job.command) is carries
    assert (job.pack in job.artifacts) is carries
    assert f"--stop-after={job.timeout - max(2, job.timeout // 20)}" in job.command


LINK, PARTS = "swiglu/torch-rocm", ("swiglu/torch-cpu", "swiglu/torch-cuda")


@pytest.fixture
def linked(kernel_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Driver, Pretended]]:
    """Two legs, and one that takes their objects."""
    folder, run = prepared(kernel_dir, tmp_path)
    engine = Pretended(EngineHome(run.id, folder))
    legs = tuple(msgspec.structs.replace(leg, takes=PARTS if leg.name == LINK else ()) for leg in run.legs)
    monkeypatch.setattr(engine_run, "open_engine", lambda _settings, _home: engine)
    with driving(folder, msgspec.structs.replace(run, legs=legs), lambda *_: None, lambda _line: None) as driver:
        yield driver, engine


def batches(driver: Driver) -> list[set[str]]:
    return [set(line.legs) for line in journal(driver) if line.event is RunEvent.SUBMITTED]


def test_a_link_begins_when_its_parts_have_ended_however_they_did(linked: tuple[Driver, Pretended]) -> None:
    driver, _ = linked
    driver.drive()
    assert batches(driver) == [set(PARTS), {LINK}]
    assert [leg.phase for leg in driver.journal.legs.values()] == [LegPhase.FAILED] * 3


def test_a_link_gets_what_its_parts_handed_back_whatever_became_of_them(linked: tuple[Driver, Pretended]) -> None:
    driver, _ = linked
    part = driver.legs[PARTS[0]]
    handed = driver.folder / "fetched" / part.job_name(1) / "objects.one.tar"
    handed.parent.mkdir(parents=True)
    handed.write_bytes(b"objects")
    driver.legs[PARTS[0]] = msgspec.structs.replace(part, job=msgspec.structs.replace(part.job, pack=handed.name))
    driver.drive()
    job = driver.job(LINK)
    assert job.command[-2:] == ("--objects-from={work}/objects.one.tar.pack", "--link")
    assert (driver.folder / "inputs" / job.inputs[-1].sha256).read_bytes() == b"objects"
    assert not job.inputs[-1].name.endswith(".tar"), "it would be unpacked among the sources"


def test_a_link_that_waits_on_its_engine_is_called_back_when_a_part_is_started_again(
    linked: tuple[Driver, Pretended],
) -> None:
    driver, engine = linked
    engine.chains = True
    first, part = driver.job_name(LINK), driver.legs[PARTS[0]]
    engine.said = {part.job_name(1): lost(2), part.job_name(2): [JobStatus(JobState.RUNNING)]}
    engine.said |= {first: [JobStatus(JobState.QUEUED)] * 9}
    driver.drive()
    assert batches(driver) == [set(PARTS), {LINK}, {PARTS[0]}, {LINK}]
    assert first in engine.cancelled
    assert [leg.attempts for leg in driver.journal.legs.values()] == [2, 1, 2]
    assert driver.journal.legs[LINK].restarts == 0
    asked = [line.given.near for line in journal(driver) if line.event is RunEvent.READY]
    assert asked == [(part.job_name(1),), (part.job_name(2),)]


def test_a_link_whose_parts_are_stuck_is_not_waited_for(
    linked: tuple[Driver, Pretended], monkeypatch: pytest.MonkeyPatch
) -> None:
    driver, _ = linked

    def full(*_: object) -> None:
        raise ClientError("no space")

    monkeypatch.setattr(engine_run, "fetch_into", full)
    with pytest.raises(ClientError, match="no space"):
        driver.drive()
    assert driver.journal.legs[LINK].phase is LegPhase.WAITING


def test_a_leg_that_ended_itself_goes_on_only_while_it_does_more(
    pretended: tuple[Driver, Pretended], monkeypatch: pytest.MonkeyPatch
) -> None:
    driver, engine = pretended
    done = iter([0, 3, 3, 5, 5, 5])

    def ended(*_: object) -> None:
        raise UnfinishedBuildError("torch-cpu", next(done), 9)

    monkeypatch.setattr(engine_run, "fetch_into", ended)
    driver.drive()
    assert phases(driver) == [("failed", 6)]
    assert driver.journal.legs["swiglu/torch-cpu"].restarts == 2
    assert len(engine.runs) == 6


def test_what_a_link_made_good_for_is_no_failure(linked: tuple[Driver, Pretended]) -> None:
    driver, _ = linked
    driver.note(RunEvent.FAILED, [PARTS[0]])
    assert not driver.linked(PARTS[0])
    driver.note(RunEvent.BUILT, [LINK])
    assert driver.linked(PARTS[0])
    assert not driver.linked(LINK)


def test_a_result_that_comes_late_is_not_lost(pretended: tuple[Driver, Pretended]) -> None:
    driver, engine = pretended
    engine.said = {"1": [*lost(1), JobStatus(JobState.RUNNING), *lost(1)]}
    driver.drive()
    assert len(engine.runs) == 1


def test_what_was_stopped_there_is_not_started_again(pretended: tuple[Driver, Pretended]) -> None:
    driver, engine = pretended
    engine.said = {"1": [JobStatus(JobState.STOPPED, "it was cancelled there")]}
    driver.drive()
    assert phases(driver) == [("failed", 1)]
    assert driver.journal.legs["swiglu/torch-cpu"].last.reason == "it was cancelled there"


def test_a_job_that_says_nothing_has_failed(pretended: tuple[Driver, Pretended]) -> None:
    """That an engine calls it completed is no success."""
    driver, _ = pretended
    driver.drive()
    assert phases(driver) == [("failed", 1)]
    assert "left no result.json" in driver.journal.legs["swiglu/torch-cpu"].last.reason


def test_a_submission_whose_reply_was_lost_is_found(pretended: tuple[Driver, Pretended]) -> None:
    driver, engine = pretended
    engine.forgets_reply = True
    driver.drive()
    assert len(engine.runs) == 1
    events = [line.event for line in journal(driver)]
    assert events[:2] == [RunEvent.SUBMITTING, RunEvent.SUBMITTED]


def test_a_submission_that_never_arrived_is_made_again(pretended: tuple[Driver, Pretended]) -> None:
    driver, engine = pretended
    engine.trouble = [EngineAwayError("no network")]
    driver.drive()
    assert len(engine.runs) == 1
    events = [line.event for line in journal(driver)]
    assert events[:4] == [RunEvent.SUBMITTING, RunEvent.NOT_SUBMITTED, RunEvent.SUBMITTING, RunEvent.SUBMITTED]


def test_an_engine_that_refuses_costs_its_legs(pretended: tuple[Driver, Pretended]) -> None:
    driver, engine = pretended
    engine.trouble = [FindingsError("no such partition")]
    driver.drive()
    assert phases(driver) == [("failed", 1)]
    assert driver.journal.legs["swiglu/torch-cpu"].last.exit_code == 1


def test_an_engine_that_is_away_is_asked_again(pretended: tuple[Driver, Pretended]) -> None:
    driver, engine = pretended
    engine.said = {"1": [JobStatus(JobState.RUNNING)]}
    original, asked = engine.poll, []

    def poll(handles: Handles) -> Mapping[str, JobStatus]:
        asked.append(1)
        if len(asked) in (1, 3):
            raise EngineAwayError("the controller restarts")
        return original(handles)

    engine.poll = poll  # type: ignore[method-assign]
    driver.drive()
    assert len(engine.runs) == 1
    assert len(asked) == 4


def test_cancelling_reaches_what_runs_and_what_waits(pretended: tuple[Driver, Pretended]) -> None:
    driver, engine = pretended
    driver._turn("local")
    driver.journal.legs["swiglu/torch-cpu"].phase = LegPhase.SUBMITTED
    driver.cancel()
    assert engine.cancelled == engine.runs
    assert phases(driver) == [("cancelled", 1)]


def journal(driver: Driver) -> list[JournalLine]:
    return [
        msgspec.json.decode(line, type=JournalLine) for line in (driver.folder / JOURNAL_FILE).read_bytes().splitlines()
    ]


def test_a_line_that_was_cut_short_is_as_if_it_was_never_begun(tmp_path: Path) -> None:
    first = Journal(tmp_path, ["a"])
    first.note(RunEvent.SUBMITTING, ["a"], batch="b1")
    first.close()
    whole = (tmp_path / JOURNAL_FILE).read_bytes()
    (tmp_path / JOURNAL_FILE).write_bytes(whole + b'{"event":"submitted","legs":["a"],"hand')
    again = Journal(tmp_path, ["a"])
    assert again.of(LegPhase.SUBMITTING) == ["a"]
    again.note(RunEvent.SUBMITTED, ["a"], handles=("7",))
    again.close()
    assert Journal(tmp_path, ["a"]).legs["a"].now.handle == "7"


def test_the_system_may_take_less_of_a_line_than_it_was_given(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.write
    monkeypatch.setattr(os, "write", lambda handle, data: real(handle, bytes(data)[:7]))
    journal_of_two(tmp_path)
    assert len((tmp_path / JOURNAL_FILE).read_bytes().splitlines()) == 2
    assert Journal(tmp_path, ["a"]).legs["a"].phase is LegPhase.SUBMITTED


def test_a_line_for_which_there_is_no_room_is_told_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A part of it is on the disk by then; the next line must not be glued to that."""
    kept, real = journal_of_two(tmp_path), os.write
    before = (tmp_path / JOURNAL_FILE).read_bytes()

    def full(handle: int, data: bytes) -> int:
        if len(data) < 20:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return real(handle, bytes(data)[:20])

    monkeypatch.setattr(os, "write", full)
    with pytest.raises(ClientError, match=r"cannot write .*journal\.jsonl") as caught:
        kept.note(RunEvent.BUILT, ["a"])
    monkeypatch.setattr(os, "write", real)
    assert "free space" in caught.value.hint
    assert (tmp_path / JOURNAL_FILE).read_bytes() == before
    assert kept.legs["a"].phase is LegPhase.SUBMITTED, "what is not written down has not happened"
    kept.note(RunEvent.BUILT, ["a"])
    assert Journal(tmp_path, ["a"]).legs["a"].phase is LegPhase.BUILT


def journal_of_two(folder: Path) -> Journal:
    made = Journal(folder, ["a"])
    made.note(RunEvent.SUBMITTING, ["a"], batch="b")
    made.note(RunEvent.SUBMITTED, ["a"], handles=("1",))
    return made


def test_a_torn_last_line_is_told_and_survived(kernel_dir: Path, tmp_path: Path) -> None:
    folder, run = prepared(kernel_dir, tmp_path, only="torch-cpu")
    (folder / JOURNAL_FILE).write_bytes(b'{"event":"submitting","at":1.0,"legs":["swig')
    said: list[str] = []
    with driving(folder, run, lambda *_: None, said.append) as driver:
        assert phases(driver) == [("waiting", 1)]
    assert said == [f"the last line of {folder / JOURNAL_FILE} was cut off; this goes on from the line before it"]
    with driving(folder, run, lambda *_: None, said.append):
        assert len(said) == 1


@pytest.mark.parametrize("line", [b"{}\n", b"no json\n", b'{"event":"built","at":1,"legs":["other"]}\n'])
def test_a_journal_that_is_damaged_in_the_middle_is_refused(tmp_path: Path, line: bytes) -> None:
    (tmp_path / JOURNAL_FILE).write_bytes(line)
    with pytest.raises(FindingsError, match=r"journal\.jsonl:1 is not a line of this journal"):
        Journal(tmp_path, ["a"])


def test_an_engine_is_named_by_kci_toml_or_by_its_type() -> None:
    assert list(choose_engines({}, "local")) == ["local"]
    with pytest.raises(UsageError, match="there is no engine 'slrum'"):
        choose_engines({}, "slrum")
    with pytest.raises(UsageError, match="there is no engine 'auto'"):
        choose_engines({}, "auto")


def toml(kernel_dir: Path, text: str, script: str = "") -> None:
    """A kci.toml with an engine `here`, whose kci first does what the script says."""
    own = kernel_dir.parent / "kci.sh"
    own.write_text(
        f'#!/bin/sh\nout=$(printf "%s\\n" "$@" | grep /out$)\n{script}\nexec "{sys.executable}" -m kci "$@"\n'
    )
    own.chmod(0o755)
    here = f'[engines.here]\ntype = "local"\npoll-seconds = 0.05\nkci = ["{own}"]\n'
    (kernel_dir / "kci.toml").write_text(here + text)


def run(kernel_dir: Path, *arguments: str | Path) -> Result:
    return kci("run", *arguments, "--cache", kernel_dir.parent / "cache")


def test_legs_go_where_kci_toml_sends_their_backends(kernel_dir: Path) -> None:
    other = '[engines.other]\ntype = "local"\npoll-seconds = 0.05\nbackends = ["cuda"]\n'
    toml(kernel_dir, f'backends = ["cpu"]\n\n{other}')
    result = run(kernel_dir, kernel_dir, "--engine", "auto")
    assert result.code == 0, result.stderr
    rows = {line.split()[1]: line.split()[2:4] for line in result.stdout.splitlines() if line.startswith("swiglu  ")}
    assert rows == {"torch-cpu": ["here", "built"], "torch-cuda": ["other", "built"], "torch-rocm": ["left", "no"]}
    manifest = read_manifest(kernel_dir / "build")
    assert manifest is not None
    assert manifest.missing == ("torch-rocm",)


def test_a_run_whose_legs_no_engine_takes_says_that_nothing_was_built(kernel_dir: Path) -> None:
    toml(kernel_dir, 'backends = ["xpu"]\n')
    result = run(kernel_dir, kernel_dir, "--engine", "auto")
    assert result.code == 3
    assert "nothing was built: no engine takes any of the legs" in result.stderr
    assert "hint: `backends` and `systems` of an engine" in result.stderr


def test_a_run_can_be_resumed_by_its_id_and_ends_the_same(kernel_dir: Path) -> None:
    first = run(kernel_dir, kernel_dir, "--engine", "local")
    identity = first.stderr.split()[1].rstrip(":")
    shutil.rmtree(kernel_dir / "build")
    again = run(kernel_dir, "--resume", identity)
    assert (again.code, again.stdout) == (0, first.stdout)
    assert (kernel_dir / "build" / "torch-cpu").is_dir()
    missing = run(kernel_dir, "--resume", "../../etc")
    assert missing.code == 2
    assert f"the latest here: {identity}" in missing.stderr


def test_a_job_that_met_the_full_disk_after_its_client_is_begun_anew_by_the_next(kernel_dir: Path) -> None:
    """Whoever resumes has made room; one resume is enough."""
    here = kernel_dir.parent
    met = f"echo 'error: cannot write /x: No space left on device' >&2; touch {here}/met; exit 1"
    toml(
        kernel_dir,
        "",
        f"[ -e {here}/met ] || {{ touch {here}/begun; while [ ! -e {here}/go ]; do sleep 0.1; done; {met}; }}",
    )
    words = ("--only", "torch-cpu", "--engine", "here", "--cache", str(here / "cache"))
    with Client("run", str(kernel_dir), *words) as client:
        client.wait_for((here / "begun").exists, "the leg to run")
        client.kill()
    (here / "go").touch()
    wait_for(lambda: [*(here / "cache" / "runs").glob("*/jobs/*/result.json")], "the leg to end")
    (identity,) = (path.name for path in (here / "cache" / "runs").iterdir() if path.is_dir())
    again = run(kernel_dir, "--resume", identity)
    assert again.code == 0, again.stderr
    assert "the disk of this machine was full" in again.stderr


def test_what_costs_more_than_it_may_is_refused_before_anything_runs(kernel_dir: Path) -> None:
    toml(kernel_dir, "price = 60.0\n")
    result = run(kernel_dir, kernel_dir, "--engine", "here", "--max-cost", "1")
    assert result.code == 1
    assert "6.00 USD" in result.stderr
    assert not (kernel_dir.parent / "cache" / "runs").exists()


def test_what_has_no_price_is_not_held_to_be_cheap_enough(kernel_dir: Path) -> None:
    toml(kernel_dir, "")
    result = run(kernel_dir, kernel_dir, "--engine", "here", "--max-cost", "1")
    assert result.code == 1
    assert "price" in result.stderr
    assert not (kernel_dir.parent / "cache" / "runs").exists()


def test_a_restart_costs_too(kernel_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    toml(kernel_dir, "price = 60.0\n")
    wanted = EngineRequest(choice=Choice(only=("torch-cpu",)), engine="here", max_cost=3.0)
    folder, prepared_run = prepare_run(open_workspace([kernel_dir]), wanted, tmp_path / "cache")
    engine = Pretended(EngineHome(prepared_run.id, folder))
    engine.said = {"1": lost(2)}
    monkeypatch.setattr(engine_run, "open_engine", lambda _settings, _home: engine)
    with driving(folder, prepared_run, lambda *_: None, lambda _line: None) as driver:
        driver.drive()
        assert "would cost more than --max-cost" in driver.journal.legs["swiglu/torch-cpu"].last.reason
    assert len(engine.runs) == 1


def test_max_cost_is_for_engines(kernel_dir: Path) -> None:
    assert run(kernel_dir, kernel_dir, "--max-cost", "1").code == 2


HOSTILE = {
    "a file that is none": ('echo junk > "$out/kci-swiglu-torch-cpu.tar"; exit 0', "kci-swiglu-torch-cpu.tar", 1),
    "a link to a file of this machine": (
        'ln -s /etc/passwd "$out/kci-swiglu-torch-cpu.tar"; exit 0', "did not hand back", 1
    ),
    "too large": ('truncate -s 3M "$out/kci-swiglu-torch-cpu.tar"; exit 0', "is larger than it may be", 5),
    "an error": ("echo 'error: no'; exit 3", "its command ended with code 3", 4),
}  # fmt: skip


@pytest.mark.parametrize("what", HOSTILE)
def test_what_is_not_what_was_asked_for_is_refused_and_said(kernel_dir: Path, what: str) -> None:
    script, said, code = HOSTILE[what]
    toml(kernel_dir, "max-artifact-mb = 2\n", script)
    result = run(kernel_dir, kernel_dir, "--engine", "here", "--only", "torch-cpu")
    assert result.code == code, result.stderr
    assert said in result.stderr
    assert not (kernel_dir / "build").exists()


SWAPPED = {
    "another variant's": ("torch-cuda", 'cp {other} "$out/{mine}"', "holds torch-cuda of swiglu"),
    "another run's": ("torch-cpu", 'cp {other} "$out/{mine}"', "was built in the run"),
    "damaged": (
        "torch-cpu", '"{python}" -m kci "$@"; LC_ALL=C sed -i s/import/Import/ "$out/{mine}"', "is truncated or corrupt"
    ),
}  # fmt: skip


@pytest.mark.parametrize("whose", SWAPPED)
def test_an_artifact_that_is_not_what_it_says_costs_its_leg_alone(kernel_dir: Path, whose: str) -> None:
    variant, script, said = SWAPPED[whose]
    good = run(kernel_dir, kernel_dir, "--engine", "local", "--only", variant, "--into", kernel_dir.parent / "t")
    assert good.code == 0, good.stderr
    (other,) = (kernel_dir.parent / "cache" / "runs").glob(f"*/fetched/*/kci-swiglu-{variant}.tar")
    script = script.format(other=other, mine="kci-swiglu-torch-cpu.tar", python=sys.executable)
    toml(kernel_dir, "", f'case "$*" in *torch-cpu*) {script}; exit 0;; esac')
    result = run(kernel_dir, kernel_dir, "--engine", "here", "--backend", "cpu", "--backend", "cuda")
    assert result.code == 1
    assert said in result.stderr
    manifest = read_manifest(kernel_dir / "build")
    assert manifest is not None
    assert [entry.variant for entry in manifest.present] == ["torch-cuda"]


def test_a_log_cannot_drive_the_terminal(kernel_dir: Path) -> None:
    toml(kernel_dir, "", r"""printf '\033]0;owned\007\033[2Jerror\r\342\200\256 text\n'; exit 1""")
    result = run(kernel_dir, kernel_dir, "--engine", "here", "--only", "torch-cpu")
    assert result.code == 4
    assert r"\x1b]0;owned\x07\x1b[2Jerror\r\u202e text" in result.stderr
    assert not set(result.stderr) & set("\x1b\x07\r\u202e")


def test_what_a_leg_sees_of_the_environment(kernel_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "secret")
    monkeypatch.setenv("MY_FLAG", "seen")
    toml(kernel_dir, 'environment = ["MY_FLAG"]\n', "env; exit 1")
    result = run(kernel_dir, kernel_dir, "--engine", "here", "--only", "torch-cpu")
    assert "MY_FLAG=seen" in result.stderr
    (log,) = (kernel_dir.parent / "cache" / "runs").glob("*/fetched/*/log.txt")
    assert "HF_TOKEN" not in log.read_text()
    assert "KCI_RUN=" in log.read_text()


def test_the_commit_travels_with_the_sources(kernel_dir: Path, tmp_path: Path, no_git_environment: None) -> None:
    def git(*words: str) -> str:
        who = ["-c", "user.name=a", "-c", "user.email=a@b"]
        done = subprocess.run(["git", "-C", kernel_dir, *who, *words], capture_output=True, text=True, check=True)
        return done.stdout.strip()

    git("init", "-q")
    git("add", ".")
    git("commit", "-qm", "one")
    assert run(kernel_dir, kernel_dir, "--engine", "local", "--only", "torch-cpu").code == 0
    manifest = read_manifest(kernel_dir / "build")
    assert manifest is not None
    assert manifest.present[0].origin.commit == git("rev-parse", "HEAD")


def test_what_is_missing_in_a_tree_is_said_by_its_leg(kernel_dir: Path, tmp_path: Path) -> None:
    folder, made = prepared(kernel_dir, tmp_path)
    with driving(folder, made, lambda *_: None, lambda _line: None) as driver:
        driver.drive()
        driver.journal.legs["swiglu/torch-cpu"].phase = LegPhase.FAILED
        (partial,) = merge_run(driver, silent)
    assert partial.manifest.missing == ("torch-cpu",)
    assert partial.findings == ()


def test_merging_a_run_again_changes_nothing(kernel_dir: Path, tmp_path: Path) -> None:
    folder, made = prepared(kernel_dir, tmp_path)
    with driving(folder, made, lambda *_: None, lambda _line: None) as driver:
        driver.drive()
        first, again = merge_run(driver, silent), merge_run(driver, silent)
    assert [tree.manifest for tree in first] == [tree.manifest for tree in again]
    assert open_run(tmp_path / "cache", made.id) == (folder, made)


def test_a_local_job_whose_folder_is_gone_is_lost(kernel_dir: Path, tmp_path: Path) -> None:
    folder, made = prepared(kernel_dir, tmp_path)
    engine = LocalEngine(made.engines["local"], EngineHome(made.id, folder))
    assert engine.poll({"kci-x": "kci-x"})["kci-x"].state is JobState.LOST


@pytest.mark.parametrize(("answer", "cancelled"), [("cancel", True), ("leave", False)])
def test_ctrl_c_asks_what_is_to_become_of_legs_that_run(
    pretended: tuple[Driver, Pretended], monkeypatch: pytest.MonkeyPatch, answer: str, cancelled: bool
) -> None:
    driver, engine = pretended
    driver._submit("local")
    asked = []
    monkeypatch.setattr("sys.stdin.isatty", lambda: True, raising=False)
    monkeypatch.setattr("sys.stderr.isatty", lambda: True, raising=False)
    monkeypatch.setattr("click.prompt", lambda text, **_: asked.append(text) or answer)
    _stopped(driver, "ask", "kci run --resume x")
    assert "still to end: 1 leg. Cancel, or leave running?" in asked[0]
    assert bool(engine.cancelled) is cancelled


def test_without_a_terminal_nothing_is_asked_and_legs_go_on(pretended: tuple[Driver, Pretended]) -> None:
    driver, engine = pretended
    driver._submit("local")
    _stopped(driver, "ask", "kci run --resume x")
    assert engine.cancelled == []
    _stopped(driver, "cancel", "kci run --resume x")
    assert engine.cancelled == engine.runs


def leg(name: str, backend: str, minutes: int, kind: Kind = Kind.FULL, system: str = "x86_64-linux") -> Leg:
    return Leg(
        "k", ".", name, (name,), name, kind, backend, system, ("x",), "", 60, minutes, False, UNKNOWN, None, "", ""
    )


def test_legs_are_shared_out_by_what_engines_take_and_have_to_do() -> None:
    engines = {
        "small": EngineSettings(EngineKind.SLURM, at_once=1),
        "large": EngineSettings(EngineKind.SLURM, at_once=3, backends=(Backend.CUDA,)),
        "arm": EngineSettings(EngineKind.SSH, systems=(System.AARCH64_LINUX,), at_once=1, queue_minutes=1000.0),
    }
    legs = [leg(f"c{number}", "cuda", 10) for number in range(8)] + [
        leg("p", "cpu", 10),
        leg("n", "cpu", 1, Kind.NOARCH),
        leg("a", "cpu", 5, system="aarch64-linux"),
        leg("w", "cpu", 5, system="x86_64-windows"),
    ]
    where = {item.leg.name: item.engine for item in share_out(map(SentLeg, legs), engines)}
    assert sum(name == "large" for name in where.values()) == 6
    assert (where["p"], where["n"], where["a"], where["w"]) == ("small", "small", "arm", "")


@pytest.mark.parametrize(("engine", "said"), [("slurm", "there is no sbatch"), ("ssh", "needs a `host`")])
def test_an_engine_that_cannot_be_used_is_known_before_anything_is_submitted(
    kernel_dir: Path, monkeypatch: pytest.MonkeyPatch, engine: str, said: str
) -> None:
    monkeypatch.setenv("PATH", "")
    monkeypatch.setitem(sys.modules, "asyncssh", ModuleType("asyncssh"))
    result = run(kernel_dir, kernel_dir, "--engine", engine)
    assert result.code == {"slurm": 3, "ssh": 2}[engine]
    assert said in result.stderr
    (journal,) = (kernel_dir.parent / "cache" / "runs").glob("*/journal.jsonl")
    assert journal.read_bytes() == b""


def test_a_run_that_has_ended_can_be_cleaned_and_one_that_goes_on_cannot(kernel_dir: Path, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    folder, made = prepared(kernel_dir, tmp_path)
    with driving(folder, made, lambda *_: None, lambda _line: None):
        kept = kci("clean", "runs", "--yes", "--cache", cache)
        assert "another kci uses it" in kept.stderr
        assert folder.is_dir()
    kci("clean", "runs", "--yes", "--cache", cache)
    assert not folder.exists()
