"""What the build action makes of a leg: its options, its steps, and what it says of one that ends
itself.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from action_inputs import begin_job, inputs_of, outputs_in
from conftest import ROOT, failure
from kci.actions import build
from kci.actions.common import INPUTS
from kci.builders.native.objects import PackHead, pack_objects
from kci.builders.request import read_part
from kci.errors import BuildFailedError, UnfinishedBuildError
from kci.matrix.variants import ObjectUse
from kci.run.build_leg import BuiltLeg, LegRequest
from kci.run.records import read_failures
from variants import leg_of, make_variant

VARIANTS = ("torch-stable-abi211-cpu-x86_64-linux", "torch-stable-abi211-cpu-aarch64-linux")


@pytest.fixture(autouse=True)
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The action in a job with a kernel."""
    kernel, objects = ROOT / "examples" / "rms-norm", "objects.rms-norm.leg"
    given = {"kernel": kernel, "variant": VARIANTS[0], "upload": "true", "container": "none"}
    given |= inputs_of(**given, objects=objects, leg="leg", tier="release")
    begin_job(monkeypatch, tmp_path, **given)
    monkeypatch.setattr(build.signal, "signal", lambda *_: None)


def give_too(monkeypatch: pytest.MonkeyPatch, **inputs: str) -> None:
    monkeypatch.setenv(INPUTS, json.dumps(json.loads(os.environ[INPUTS]) | inputs))


def ends(monkeypatch: pytest.MonkeyPatch, **counts: Any) -> list[LegRequest]:
    """Have every build end itself with so many objects; the requests that it gets."""
    asked: list[LegRequest] = []

    def build_it(_workspace: object, request: LegRequest, _log: Callable[[str], None]) -> None:
        asked.append(request)
        options, name = request.options, request.variant.name
        part = read_part(options.part) if options.part else None
        use = ObjectUse(counts["found"], counts["there"] - counts["found"])
        known = {"part": part, "objects": counts["there"], "wanted": 9, "use": use}
        head = PackHead(kernel="rms-norm", variant=name, **known)
        assert options.objects_to is not None
        pack_objects(options.cache, 0.0, head, options.objects_to)
        raise UnfinishedBuildError(name, counts["there"], 9)

    monkeypatch.setattr(build, "build_part", build_it)
    monkeypatch.setattr(build.kci, "build_leg", build_it)
    return asked


def test_a_part_is_told_all_that_decides_what_is_in_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = ends(monkeypatch, there=3, found=0)
    give_too(monkeypatch, part="2/3")
    earlier = tmp_path / "temp" / "kci-objects" / "earlier" / "objects.rms-norm.v.tar"
    none = PackHead(kernel="rms-norm", variant="v", objects=0, wanted=0)
    pack_objects(tmp_path / "none", 0.0, none, earlier)
    build.main()
    (options,) = [request.options for request in asked]
    assert (options.part, options.objects_from) == ("2/3", (earlier,))


@pytest.mark.parametrize(("found", "said"), [
    (3, "it compiled nothing that could be kept"),
    (0, "re-run the failed jobs, or push: it goes on from there"),
])  # fmt: skip
def test_a_leg_that_ends_itself_fails_and_says_whether_the_next_attempt_gets_further(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    found: int, said: str,
) -> None:  # fmt: skip
    ends(monkeypatch, there=3, found=found)
    ended = failure(SystemExit, "", build.main)
    assert ended.code == 4
    assert said in capsys.readouterr().out
    assert outputs_in(tmp_path / "output")["objects-name"] == "objects.rms-norm.leg-1"
    assert f"| leg | 3 of 9 | {found} |" in (tmp_path / "summary").read_text()


def test_the_variants_of_a_leg_share_its_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = ends(monkeypatch, there=3, found=1)
    now = iter(range(1000, 10**6, 60))
    monkeypatch.setattr(build.time, "time", lambda: float(next(now)))
    give_too(monkeypatch, timeout="350", variant=" ".join(VARIANTS))
    failure(SystemExit, "", build.main)
    first, second = (request.options.stop_after or 0 for request in asked)
    assert 300 < second < first < 350 - build.SETUP_MINUTES
    assert "| leg | 6 of 18 | 2 |" in (tmp_path / "summary").read_text()


@pytest.mark.parametrize("failing", VARIANTS)
def test_one_variant_that_fails_fails_the_leg_and_stops_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failing: str
) -> None:
    def build_it(_workspace: object, request: LegRequest, _log: object) -> BuiltLeg:
        if request.variant.name == failing:
            raise BuildFailedError("no compiler likes it")
        made = make_variant(tmp_path, request.variant.name)
        return BuiltLeg(made, leg_of(made), None)

    monkeypatch.setattr(build.kci, "build_leg", build_it)
    give_too(monkeypatch, variant=" ".join(VARIANTS))
    assert failure(SystemExit, "", build.main).code == 4
    (other,) = {*VARIANTS} - {failing}
    outputs = outputs_in(tmp_path / "output")
    assert outputs["variant-dir"] == str(tmp_path / other)
    (failed,) = read_failures([Path(outputs["folder"])], "rms-norm")
    assert failed.variant == failing


@pytest.mark.parametrize("container", ["none", "example.invalid/image"])
def test_room_is_made_for_an_image_and_for_nothing_else(
    monkeypatch: pytest.MonkeyPatch, container: str
) -> None:
    needed: list[int] = []
    monkeypatch.setattr(build, "make_room", lambda need, _log: needed.append(need))
    ends(monkeypatch, there=3, found=1)
    give_too(monkeypatch, disk="40", container=container)
    failure(SystemExit, "", build.main)
    assert needed == ([] if container == "none" else [40])
