"""A merge that is killed, or whose disk fails, at any call: the old tree or the new one, whole, and nothing else left.

The faults are put in, not waited for: a hook counts the calls into the operating system and strikes at the chosen one.
`KCI_CRASHES` sets how many points are tried.
"""

from __future__ import annotations

import errno
import os
import random
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType

import pytest

from kci.errors import KciError
from kci.files import replace
from kci.tree.merge import merge
from kci.tree.planned import Planned, PlannedKernel
from kci.verify import verify
from variants import COMMIT, CPU, CUDA, STABLE, make_artifact, make_variant

POINTS = int(os.environ.get("KCI_CRASHES", "9"))
Strike = Callable[[], None]

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")


class Setting:
    """An old tree, and the artifacts of the merge that makes the new one of it."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.tree = root / "build"
        olds = [make_artifact(root / "in" / name, make_variant(root / "in" / name, name)) for name in (CPU, STABLE)]
        self.new = [
            make_artifact(root / "in" / "2", make_variant(root / "in" / "2", CPU, files=MANY), attempt=2),
            make_artifact(root / "in" / "3", make_variant(root / "in" / "3", CUDA, archs=("9.0",)), suffix=".tar.zst"),
        ]
        self.planned = Planned({"gated-norm": PlannedKernel("gated-norm", (CPU, CUDA, STABLE), 1)}, COMMIT)
        merge(olds, self.tree)
        (self.tree / "CARD.md").write_text("card")
        self.old = contents(self.tree)
        self.merge()
        self.want = contents(self.tree)
        self.back()

    def merge(self) -> None:
        merge(self.new, self.tree, self.planned)

    def back(self) -> None:
        """The old tree again, without the record of its files."""
        for path in sorted(self.tree.rglob("*"), reverse=True):
            path.unlink() if path.is_file() else path.rmdir()
        for name, data in self.old.items():
            path = self.tree / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)

    def require_whole(self) -> None:
        assert contents(self.tree) in (self.old, self.want)

    def require_clean(self) -> None:
        assert sorted(path.name for path in self.root.iterdir()) == ["build", "cache", "in"]


MANY: dict[str, str | bytes] = {f"part{number}.py": f"x = {number}\n" for number in range(8)} | {"__init__.py": ""}


def contents(tree: Path) -> dict[str, bytes]:
    return {path.relative_to(tree).as_posix(): path.read_bytes() for path in sorted(tree.rglob("*")) if path.is_file()}


@pytest.fixture(params=["one step", "two renames"])
def setting(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Setting:
    (tmp_path / "cache").mkdir()
    monkeypatch.setenv("KCI_CACHE", str(tmp_path / "cache"))
    if request.param == "two renames":
        monkeypatch.setattr(replace, "_exchange", lambda _one, _other: False)
    return Setting(tmp_path)


def hook(strike_at: int, strike: Strike, names: frozenset[str] = frozenset()) -> tuple[Callable[..., None], list[int]]:
    """A profile function that strikes at a call of C code, counted from 1; the list holds how many there were."""
    count = [0]

    def profile(_frame: FrameType, event: str, argument: object) -> None:
        if event == "c_call" and (not names or getattr(argument, "__name__", "") in names):
            count[0] += 1
            if count[0] == strike_at:
                strike()

    return profile, count


def calls_of(work: Callable[[], None], names: frozenset[str] = frozenset()) -> int:
    profile, count = hook(0, lambda: None, names)
    sys.setprofile(profile)
    try:
        work()
    finally:
        sys.setprofile(None)
    return count[0]


def killed_at(point: int, work: Callable[[], None]) -> bool:
    """Run the work in a child process that kills itself at a call; whether it got that far."""
    child = os.fork()
    if child == 0:
        profile, _ = hook(point, lambda: os.kill(os.getpid(), signal.SIGKILL))
        sys.setprofile(profile)
        try:
            work()
        finally:
            os._exit(0)
    return os.WIFSIGNALED(os.waitpid(child, 0)[1])


def test_killed_anywhere_the_tree_is_the_old_or_the_new_one(setting: Setting) -> None:
    total = calls_of(setting.merge)
    setting.back()
    random_ = random.Random(11)
    killed = 0
    for point in sorted(random_.sample(range(1, total + 1), min(POINTS, total))):
        killed += killed_at(point, setting.merge)
        if setting.tree.exists():  # between two renames it stands beside, and the next command puts it back
            setting.require_whole()
        else:
            assert any(path.name.endswith(".old") for path in setting.root.iterdir())
        setting.merge()
        assert contents(setting.tree) == setting.want
        setting.require_clean()
        setting.back()
    assert killed > POINTS // 2


def test_a_kill_between_the_renames_loses_nothing(setting: Setting, monkeypatch: pytest.MonkeyPatch) -> None:
    """The next merge brings something else: it has to find the variants that were there."""
    monkeypatch.setattr(replace, "_exchange", lambda _one, _other: False)
    child = os.fork()
    if child == 0:
        real = Path.rename

        def rename(self: Path, target: Path) -> Path:
            done = real(self, target)
            if target.name.endswith(".old"):
                os.kill(os.getpid(), signal.SIGKILL)
            return done

        Path.rename = rename  # type: ignore[method-assign]
        try:
            setting.merge()
        finally:
            os._exit(0)
    assert os.WIFSIGNALED(os.waitpid(child, 0)[1])
    assert not setting.tree.exists()
    said: list[str] = []
    (manifest,) = merge(setting.new[1:], setting.tree, log=said.append)
    assert [entry.variant for entry in manifest.present] == [STABLE, CPU, CUDA]
    assert any("was restored" in line for line in said)
    setting.require_clean()


WRITING = frozenset(
    ("open", "write", "mkdir", "link", "rename", "replace", "fsync", "chmod", "unlink", "rmdir", "scandir", "stat",
     "lstat", "symlink", "close", "flock", "read", "readlink", "utime")
)  # fmt: skip


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO])
def test_a_disk_that_fails_anywhere_leaves_the_old_or_the_new_tree(setting: Setting, code: int) -> None:
    total = calls_of(setting.merge, WRITING)
    setting.back()

    def fail() -> None:
        raise OSError(code, os.strerror(code))

    random_ = random.Random(code)
    failed = 0
    for point in sorted(random_.sample(range(1, total + 1), min(POINTS, total))):
        profile, _ = hook(point, fail, WRITING)
        sys.setprofile(profile)
        try:
            setting.merge()
        except (KciError, OSError):
            failed += 1
        finally:
            sys.setprofile(None)
        setting.require_whole()
        setting.merge()
        assert contents(setting.tree) == setting.want
        setting.require_clean()
        setting.back()
    assert failed > 0


def test_a_terminated_merge_cleans_up_itself(setting: Setting) -> None:
    """SIGTERM is what a cancelled CI job gets first."""
    from kci.cli import main

    total = calls_of(setting.merge)
    setting.back()
    terminated = 0
    for point in (total // 3, total // 2, total * 2 // 3):
        child = os.fork()
        if child == 0:
            code = 1
            profile, _ = hook(point, lambda: os.kill(os.getpid(), signal.SIGTERM))
            arguments = ["merge", *map(str, setting.new), "--into", str(setting.tree)]
            sys.stderr = sys.stdout = open(os.devnull, "w")  # noqa: PTH123, SIM115
            sys.setprofile(profile)
            try:
                main(arguments)
            except SystemExit as stop:
                code = stop.code if isinstance(stop.code, int) else 1
            finally:
                os._exit(code)
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        assert status in (0, 130)
        terminated += status == 130
        assert sorted(path.name for path in setting.root.iterdir()) == ["build", "cache", "in"]
        setting.back()
    assert terminated


def test_merges_at_once_end_with_the_variants_of_both(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KCI_CACHE", str(tmp_path / "cache"))
    (tmp_path / "cache").mkdir()
    names = (CPU, CUDA)
    files = {
        name: make_artifact(tmp_path / "in" / name, make_variant(tmp_path / "in" / name, name, archs=("9.0",)))
        for name in names
    }
    for pair in range(max(4, POINTS // 6)):
        tree = tmp_path / "trees" / str(pair)
        children = []
        for name in names:
            child = os.fork()
            if child == 0:
                code = 1
                try:
                    merge([files[name]], tree)
                    code = 0
                finally:
                    os._exit(code)
            children.append(child)
        assert [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children] == [0, 0]
        assert verify(tree, ignore=["KCI74"]) == []
        assert sorted(path.name for path in tree.iterdir()) == [
            "SHA256SUMS",
            "kci-manifest.json",
            CPU,
            CUDA,
        ]
    assert sorted(path.name for path in (tmp_path / "trees").iterdir()) == sorted(map(str, range(max(4, POINTS // 6))))
