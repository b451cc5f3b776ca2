"""What `BuildOptions.arguments` says, the real command line reads: kci in a container builds the
same. And a leg of several variants.
"""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from buildkit import files_in
from cli.runner import Result, ended, kci
from conftest import ROOT
from kci.builders.dispatch import BUILDERS
from kci.builders.request import BuildOptions
from kci.cli import build
from kci.run import build_leg
from kci.run.build_leg import BuiltLeg, LegRequest

SWIGLU = ROOT / "examples" / "swiglu"
TEXT = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=20)
PACKS = st.sampled_from([Path("/p/1.tar"), Path("/some where")])
VALUES: dict[str, st.SearchStrategy[Any]] = {
    "cache": st.sampled_from([Path("/c"), Path("/some where/c")]),
    "builder": st.sampled_from(BUILDERS),
    "container": TEXT,
    "tier": st.sampled_from([None, "release", "all"]),
    "jobs": st.none() | st.integers(1, 10**6),
    "stop_after": st.none() | st.floats(0, 10**6),
    "isolation": st.booleans(),
    "load": st.booleans(),
    "unique_id": st.none() | TEXT,
    "archs": st.lists(TEXT, max_size=3).map(tuple),
    "part": st.sampled_from([None, "1/1", "3/16"]),
    "link": st.just(False),
    "objects_from": st.lists(PACKS, max_size=2).map(tuple),
    "objects_to": st.just(Path("/p/o.tar.zst")),
    "attempt": st.integers(1, 99),
    "run": st.text("abc-", min_size=1, max_size=5),
}


def requested(monkeypatch: pytest.MonkeyPatch, *words: str) -> LegRequest:
    """What `kci build` makes of a command line, without building it."""
    asked: list[LegRequest] = []

    def built(_workspace: object, request: LegRequest, _log: object) -> BuiltLeg:
        asked.append(request)
        return BuiltLeg(request.directory, None, None)  # type: ignore[arg-type]

    monkeypatch.setattr(build, "build_leg", built)
    monkeypatch.setattr(build, "build_part", built)
    ended(kci("build", *words), 0)
    return asked[0]


@given(st.builds(BuildOptions, **VALUES))
def test_the_command_line_gives_the_options_back(options: BuildOptions) -> None:
    assert {*VALUES} == set(options.__struct_fields__), "a new field needs a value above"
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setenv("KCI_CACHE", str(options.cache))
        monkeypatch.setenv("KCI_RUN", options.run)
        monkeypatch.setenv("KCI_ATTEMPT", str(options.attempt))
        words = (str(SWIGLU), "--variant=torch-cpu", *options.arguments())
        assert requested(monkeypatch, *words).options == options


def test_the_time_is_that_of_all_variants_together(monkeypatch: pytest.MonkeyPatch) -> None:
    times, asked = iter([60.0, 180.0, 9999.0]), []

    def built(_workspace: object, request: LegRequest, _log: object) -> BuiltLeg:
        asked.append(request.options.stop_after)
        return BuiltLeg(request.directory, None, None)  # type: ignore[arg-type]

    monkeypatch.setattr(build, "build_leg", built)
    monkeypatch.setattr(build, "time", SimpleNamespace(monotonic=lambda: next(times)))
    names = ("torch-cpu", "torch-cuda", "torch-rocm")
    ended(kci("build", SWIGLU, *(f"--variant={name}" for name in names), "--stop-after=5"), 0)
    assert asked == [5.0, 3.0, 0.0]


def test_what_runs_in_a_container_is_what_was_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = [str(SWIGLU), "--variant=torch-cpu", f"--output={tmp_path}/o"]
    words += ["--pack", str(tmp_path / "p.tar")]
    words += ["--tier=all", "--jobs=3", "--no-isolation", "--unique-id=-x y"]
    outside = requested(monkeypatch, *words)
    line = shlex.split(ended(kci("build", *words, "--container=image:1", "--dry-run"), 0))
    inside = requested(monkeypatch, *line[line.index("build") + 1 :])
    assert inside == msgspec.structs.replace(outside, kernel=inside.kernel)
    assert inside.kernel.build == outside.kernel.build


@pytest.mark.parametrize(
    "words",
    [
        "--output=o --pack=a.tar.zst",
        "--output=o --objects-to=a.tar.zst",
        "--part=1/2 --pack=a.tar.zst",
    ],
)
def test_a_pack_that_cannot_be_written_is_told_before_anything_is_compiled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: str
) -> None:
    begun: list[object] = []
    monkeypatch.setattr(build_leg, "make_variant_dir", lambda *args: begun.append(args))
    monkeypatch.setattr(build_leg, "build_variant", lambda *args: begun.append(args))
    monkeypatch.setitem(sys.modules, "zstandard", None)
    monkeypatch.chdir(tmp_path)
    ended(kci("build", SWIGLU, "--variant=torch-cpu", *words.split()), 3, "kci[zstd]")
    assert begun == []


def built(*words: str | Path, names: Sequence[str]) -> Result:
    """Build variants of an example."""
    chosen = [f"--variant={name}" for name in names]
    return kci("build", ROOT / "examples" / "swiglu", *chosen, *words)


def test_several_variants_are_built_and_packed_one_by_one(tmp_path: Path) -> None:
    names, out = ("torch-cpu", "torch-cuda"), tmp_path / "out"
    done = built("--output", out, "--pack", tmp_path / "packed", names=(*names, "torch-cpu"))
    assert ended(done, 0).splitlines() == [str(out / name) for name in names]
    assert files_in(tmp_path / "packed") == [f"kci-swiglu-{name}.tar" for name in names]
    assert kci("merge", tmp_path / "packed", "--into", tmp_path / "tree").code == 0


def test_one_artifact_cannot_hold_several_variants(tmp_path: Path) -> None:
    (tmp_path / "file.tar").touch()
    places = ("--output", tmp_path / "out", "--pack", tmp_path / "file.tar")
    done = built(*places, names=("torch-cpu", "torch-cuda"))
    ended(done, 2, "names a folder")


def test_an_unknown_variant_stops_before_anything_is_built(tmp_path: Path) -> None:
    ended(built("--output", tmp_path / "out", names=("torch-cpu", "torch-nope")), 2)
    assert not (tmp_path / "out").exists()
