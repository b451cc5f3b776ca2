"""A leg whose engine is away, or lets it wait too long, moves to the fallback; the first good result is its result."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import NamedTuple

import msgspec
import pytest

from cli.runner import kci
from conftest import ROOT
from kci.errors import FindingsError, UsageError
from kci.remote import engine_run
from kci.remote.engine_choice import choose_engines
from kci.remote.engine_plan import EngineLeg, EngineRequest, prepare_run
from kci.remote.engine_run import Driver, driving
from kci.remote.job import JobState, JobStatus, write_job
from kci.remote.protocol import Batch, EngineAwayError, EngineHome, Handles
from kci.remote.run_state import (
    JOURNAL_FILE,
    Journal,
    JournalLine,
    LegPhase,
    LegProgress,
    Placement,
    RunEvent,
    why_move,
)
from kci.workspace.workspace import Choice, open_workspace

LEG = "swiglu/torch-cpu"
TOML = """\
[engines.slow]
type = "local"
price = 1.2
poll-seconds = 1.0
fallback = "other"
fallback-minutes = 10.0

[engines.other]
type = "local"
builds = false
price = 6.0
poll-seconds = 1.0
"""


class Clock:
    """Time passes when the driver sleeps."""

    def __init__(self) -> None:
        self.now = 0.0
        self.at: dict[float, Callable[[], None]] = {}

    def passes(self, seconds: float) -> None:
        self.now += seconds
        assert self.now < 24 * 3600, "the run does not end"
        for moment in [moment for moment in self.at if moment <= self.now]:
            self.at.pop(moment)()


class Place:
    """An engine of which a test says whether it is there, and what becomes of its jobs."""

    pause = 1.0
    chains = False

    def __init__(self, name: str, home: EngineHome) -> None:
        self.name, self.home = name, home
        self.away = False
        self.jobs: list[str] = []
        self.cancelled: list[str] = []
        self.state = JobStatus(JobState.ENDED)

    def _reach(self) -> None:
        if self.away:
            raise EngineAwayError("no route")

    def submit(self, batch: Batch) -> Handles:
        self._reach()
        for job in batch.jobs:
            assert job.name not in self.jobs, "submitted twice"
            write_job(self.home.job(job.name), job)
            self.jobs.append(job.name)
        return {job.name: f"{self.name}:{job.name}" for job in batch.jobs}

    def find(self, batch: Batch) -> Handles:
        self._reach()
        return {job.name: f"{self.name}:{job.name}" for job in batch.jobs if job.name in self.jobs}

    def poll(self, handles: Handles) -> Mapping[str, JobStatus]:
        self._reach()
        return {name: self.state if name not in self.cancelled else JobStatus(JobState.STOPPED) for name in handles}

    def cancel(self, handles: Handles) -> None:
        self._reach()
        self.cancelled += handles

    def read(self, name: str, handle: str, file: str) -> Iterator[bytes]:
        raise FileNotFoundError(name, handle, file)

    def close(self) -> None:
        pass


class World(NamedTuple):
    """A run of one leg on `slow`, whose fallback is `other`."""

    driver: Driver
    slow: Place
    other: Place
    clock: Clock
    fetched: list[str]

    @property
    def events(self) -> list[str]:
        lines = (self.driver.folder / JOURNAL_FILE).read_bytes().splitlines()
        return [str(msgspec.json.decode(line, type=JournalLine).event) for line in lines]

    @property
    def leg(self) -> LegProgress:
        return self.driver.journal.legs[LEG]


@pytest.fixture
def kernel_dir(tmp_path: Path) -> Path:
    ignored = shutil.ignore_patterns("build", "__pycache__")
    made = Path(shutil.copytree(ROOT / "examples" / "swiglu", tmp_path / "swiglu", ignore=ignored))
    (made / "kci.toml").write_text(TOML)
    return made


@pytest.fixture
def world(kernel_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    yield from _worlds(kernel_dir, tmp_path, monkeypatch, None)


@pytest.fixture
def cheap_world(kernel_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    """One that may not cost what it would on both engines: 2 minutes at 1.20 and 6.00 USD an hour."""
    yield from _worlds(kernel_dir, tmp_path, monkeypatch, 0.23)


def _worlds(
    kernel_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, max_cost: float | None
) -> Iterator[World]:
    wanted = EngineRequest(choice=Choice(only=("torch-cpu",)), engine="slow", max_cost=max_cost)
    folder, run = prepare_run(open_workspace([kernel_dir]), wanted, tmp_path / "cache")
    clock = Clock()
    monkeypatch.setattr(engine_run, "time", SimpleNamespace(monotonic=lambda: clock.now, sleep=clock.passes))
    places = {name: Place(name, EngineHome(run.id, folder)) for name in run.engines}
    fetched: list[str] = []

    class Fetching(Driver):
        """Takes every job that has ended for a good one, but those whose engine says `bad`."""

        def _fetch(self, name: str, leg: str, at: Placement) -> None:
            behind = at is not self.journal.legs[leg].now
            fetched.append(self.job(leg, at).name)
            if places[name].state.reason == "bad":
                self._leave(leg, at, "bad") if behind else self.fail(leg, FindingsError("bad"))
            else:
                self.note(RunEvent.BUILT, [leg], attempt=at.attempt if behind else 0)

    monkeypatch.setattr(engine_run, "Driver", Fetching)
    with driving(folder, run, lambda *_: None, lambda _line: None) as driver:
        driver.engines = dict(places)  # type: ignore[arg-type]
        yield World(driver, places["slow"], places["other"], clock, fetched)


RUNNING, QUEUED = JobStatus(JobState.RUNNING), JobStatus(JobState.QUEUED)


def test_an_engine_that_is_away_too_long_loses_what_it_never_got(world: World) -> None:
    world.slow.away = True
    world.driver.drive()
    assert world.slow.jobs == []
    assert [name[-2:] for name in world.other.jobs] == ["-2"]
    assert world.leg.phase is LegPhase.BUILT
    assert world.driver.place(LEG).engine == "other"
    assert 600 <= world.clock.now < 700
    assert "slow cannot be reached for 10 min" in (world.driver.folder / JOURNAL_FILE).read_text()


def test_a_leg_that_waits_in_a_queue_moves_and_is_taken_out_of_it(world: World) -> None:
    world.slow.state = QUEUED
    world.driver.drive()
    assert world.slow.cancelled == world.slow.jobs
    assert world.events == ["submitting", "submitted", "moved", "submitting", "submitted", "built", "left-behind"]
    assert "it has waited for slow for 10 min" in (world.driver.folder / JOURNAL_FILE).read_text()


def test_a_leg_that_runs_is_not_moved(world: World) -> None:
    world.slow.state = RUNNING
    world.clock.at[3000] = lambda: setattr(world.slow, "state", JobStatus(JobState.ENDED))
    world.driver.drive()
    assert world.other.jobs == []
    assert world.leg.phase is LegPhase.BUILT


def test_a_leg_that_ran_when_its_engine_went_away_moves_once_it_must_have_ended(world: World) -> None:
    world.slow.state = RUNNING
    world.clock.at[60] = lambda: setattr(world.slow, "away", True)
    world.driver.drive()
    timeout = world.driver.legs[LEG].job.timeout
    assert world.leg.phase is LegPhase.BUILT
    assert 60 + (timeout + 10) * 60 <= world.clock.now < 60 + (timeout + 13) * 60


def test_the_first_result_wins_and_the_other_attempt_is_cancelled(world: World) -> None:
    """Queued when the engine went away; it comes back with the result while the fallback is still at it."""
    world.slow.state = QUEUED
    world.other.state = RUNNING
    world.clock.at[60] = lambda: setattr(world.slow, "away", True)

    def back() -> None:
        world.slow.away, world.slow.state = False, JobStatus(JobState.ENDED)

    world.clock.at[2000] = back
    world.driver.drive()
    assert [name[-2:] for name in world.fetched] == ["-1"]
    assert world.other.cancelled == world.other.jobs
    assert (world.leg.phase, world.leg.now.attempt, world.leg.behind) == (LegPhase.BUILT, 1, [])
    assert world.driver.place(LEG).engine == "slow"
    assert world.events[-2:] == ["built", "left-behind"]


def test_what_comes_second_is_not_fetched(world: World) -> None:
    world.slow.state = QUEUED
    world.clock.at[60] = lambda: setattr(world.slow, "away", True)
    world.driver.drive()
    assert [name[-2:] for name in world.fetched] == ["-2"]
    assert len(world.leg.behind) == 1  # it could not be told; the next client tries again
    world.slow.away, world.slow.state = False, RUNNING
    world.driver.drive()
    assert world.slow.cancelled == world.slow.jobs
    assert len(world.fetched) == 1
    assert world.events[-1] == "left-behind"


def test_a_bad_result_of_what_was_left_behind_does_not_count(world: World) -> None:
    world.slow.state = QUEUED
    world.other.state = RUNNING
    world.clock.at[60] = lambda: setattr(world.slow, "away", True)

    def back() -> None:
        world.slow.away, world.slow.state = False, JobStatus(JobState.ENDED, "bad")

    world.clock.at[2000] = back
    world.clock.at[3000] = lambda: setattr(world.other, "state", JobStatus(JobState.ENDED))
    world.driver.drive()
    assert [name[-2:] for name in world.fetched] == ["-1", "-2"]
    assert world.leg.phase is LegPhase.BUILT
    assert world.driver.place(LEG).engine == "other"


def test_both_that_run_go_on_until_one_has_a_result(world: World) -> None:
    world.slow.state = QUEUED
    world.other.state = RUNNING
    world.clock.at[60] = lambda: setattr(world.slow, "away", True)

    def back() -> None:
        world.slow.away, world.slow.state = False, RUNNING

    world.clock.at[2000] = back
    world.clock.at[3000] = lambda: setattr(world.other, "state", JobStatus(JobState.ENDED))
    world.driver.drive()
    assert world.clock.now >= 3000
    assert world.slow.cancelled == world.slow.jobs
    assert [name[-2:] for name in world.fetched] == ["-2"]


def test_a_submission_that_was_interrupted_by_the_network_is_found_and_ended(world: World) -> None:
    """Nobody knows whether the engine got it; after the move it turns out that it did."""
    submit = world.slow.submit

    def lose_reply(batch: Batch) -> Handles:
        submit(batch)
        world.slow.away = True
        raise EngineAwayError("the reply was lost")

    world.slow.submit = lose_reply  # type: ignore[method-assign]
    world.slow.state, world.other.state = RUNNING, RUNNING
    world.clock.at[2000] = lambda: setattr(world.slow, "away", False)
    world.clock.at[3000] = lambda: setattr(world.other, "state", JobStatus(JobState.ENDED))
    world.driver.drive()
    assert world.slow.cancelled == world.slow.jobs
    assert len(world.slow.jobs) == len(world.other.jobs) == 1


def test_a_move_that_would_cost_too_much_is_not_made(cheap_world: World) -> None:
    world = cheap_world
    world.slow.state = QUEUED
    world.clock.at[3000] = lambda: setattr(world.slow, "state", JobStatus(JobState.ENDED))
    world.driver.drive()
    assert world.other.jobs == []
    assert world.leg.phase is LegPhase.BUILT


def test_a_fallback_takes_no_more_than_it_has_room_for(world: World) -> None:
    settings = world.driver.run.engines
    settings["other"] = msgspec.structs.replace(settings["other"], at_once=1)
    world.slow.state = QUEUED
    world.driver._turn("slow")
    world.driver.pending[LEG] = -1000.0
    assert world.driver._take_over("other", (), 0) == []
    assert world.driver._take_over("other", (), 1) == [LEG]


def test_cancelling_reaches_what_was_left_behind_and_what_can_be_reached(world: World) -> None:
    world.slow.state = world.other.state = RUNNING
    world.driver._turn("slow")
    world.driver.running.clear()
    world.driver.pending[LEG] = -1000.0
    world.driver._turn("other")
    assert len(world.other.jobs) == 1
    world.slow.away = True
    world.driver.cancel()
    assert world.other.cancelled == world.other.jobs
    assert world.leg.phase is LegPhase.CANCELLED
    assert world.slow.cancelled == []


def test_what_was_moved_is_known_to_the_next_client(world: World) -> None:
    world.slow.state = QUEUED
    world.driver._turn("slow")
    world.driver.pending[LEG] = -1000.0
    world.driver._turn("other")
    again = Journal(world.driver.folder, [LEG]).legs[LEG]
    assert again == world.leg
    assert (again.now.attempt, again.now.engine, [item.attempt for item in again.behind]) == (2, "other", [1])


@pytest.mark.parametrize(
    ("pending", "running", "away", "moves"),
    [
        (599, False, 0, False), (600, False, 0, True), (10_000, True, 0, False), (0, False, 599, False),
        (0, False, 600, True), (0, True, 600, False), (0, True, 600 + 60 * 20, True),
    ],
)  # fmt: skip
def test_when_a_leg_moves(world: World, pending: float, running: bool, away: float, moves: bool) -> None:
    leg: EngineLeg = world.driver.legs[LEG]
    assert leg.job.timeout == 15
    seen = {"pending": pending, "running": running, "away": away}
    assert bool(why_move(leg, LegProgress(), 600, **seen)) is moves
    moved = LegProgress(now=Placement(2, "other"))
    assert why_move(leg, moved, 600, **seen) == ""
    assert why_move(msgspec.structs.replace(leg, fallback=None), LegProgress(), 600, **seen) == ""


def test_a_fallback_has_to_be_another_engine_of_kci_toml(kernel_dir: Path) -> None:
    known = open_workspace([kernel_dir]).settings.settings.engines
    wrong = {**known, "slow": msgspec.structs.replace(known["slow"], fallback="othre")}
    with pytest.raises(UsageError, match="the fallback 'othre' is not another engine") as told:
        choose_engines(wrong, "slow")
    assert "other" in (told.value.hint or "")
    with pytest.raises(UsageError):
        choose_engines({"slow": msgspec.structs.replace(known["slow"], fallback="slow")}, "slow")


def test_a_real_run_whose_engine_is_away_is_built_by_the_fallback(kernel_dir: Path) -> None:
    away = '[engines.gone]\ntype = "command"\npoll-seconds = 0.05\nfallback = "here"\nfallback-minutes = 0.0\n'
    for verb in ("submit", "find", "poll", "cancel"):
        away += f'{verb} = ["sh", "-c", "exit 75"]\n'
    (kernel_dir / "kci.toml").write_text(f'{away}\n[engines.here]\ntype = "local"\nbuilds = false\n')
    result = kci("run", kernel_dir, "--engine", "auto", "--cache", kernel_dir.parent / "cache")
    assert result.code == 0, result.stderr
    rows = [line.split()[2:5] for line in result.stdout.splitlines() if line.startswith("swiglu  ")]
    assert rows == [["here", "built", "2"]] * 3
