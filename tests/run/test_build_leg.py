"""A leg says at once what `kci verify` would say about its binaries, and packs nothing that does
not meet it.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from buildkit import leg_request, noarch_kernel, quiet, write_tree
from cli.runner import kci
from conftest import ROOT, failure
from kci.builders.request import BuildOptions
from kci.diagnostics import Diagnostic, finding
from kci.errors import FindingsError, UnsafeError, UsageError
from kci.plan.workspace import open_workspace
from kci.run import build_leg as legs
from kci.run.build_leg import BuiltLeg, build_leg, check_replaceable
from kci.tree.pack import read_leg

SWIGLU = ROOT / "examples" / "swiglu"
TOO_NEW = finding("KCI742", "it needs GLIBC_2.34", path="torch-cpu/x.so")


def leg(tmp_path: Path, artifact: Path | None = None, **options: object) -> BuiltLeg:
    workspace = open_workspace([SWIGLU])
    how = BuildOptions(tmp_path / "cache", **options)  # type: ignore[arg-type]
    return build_leg(workspace, leg_request(workspace, tmp_path / "out", how, artifact), quiet)


def test_what_does_not_is_told_and_not_packed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[object] = []

    def refusing(path: Path, select: object, **_kernel: object) -> list[Diagnostic]:
        asked.append((path, select))
        return [TOO_NEW]

    monkeypatch.setattr(legs, "verify", refusing)
    made = leg(tmp_path)
    assert made.findings == (TOO_NEW,)
    assert asked == [(made.directory, ("KCI74", "KCI75", "KCI76"))]
    caught = failure(FindingsError, "is not packed", leg, tmp_path, tmp_path / "x.tar")
    assert list(caught.diagnostics) == [TOO_NEW]
    assert not (tmp_path / "x.tar").exists()
    assert made.directory.is_dir()
    by_hand = kci("build", SWIGLU, "--variant", "torch-cpu", "--output", tmp_path / "by-hand")
    assert (by_hand.code, by_hand.stdout) == (1, f"{tmp_path / 'by-hand' / 'torch-cpu'}\n"), by_hand
    assert TOO_NEW.rule in by_hand.stderr


def test_a_build_in_an_image_returns_the_record_of_its_artifact(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(legs, "choose_image", lambda image, *_: None if image == "none" else image)
    monkeypatch.setattr(legs, "run_in_container", lambda build, _log: kci(*build.arguments))
    made = leg(tmp_path, tmp_path / "x.tar", container="an/image:1")
    assert (made.record, made.findings) == (record := read_leg(tmp_path / "x.tar"), ())
    assert (record.card or "").startswith("---\nlibrary_name: kernels\nlicense: apache-2.0\n")
    assert leg(tmp_path, container="an/image:1").record.builder == "noarch"


def test_a_variant_without_archs_has_none_to_choose(tmp_path: Path) -> None:
    failure(UsageError, "torch-cpu has no archs", leg, tmp_path, archs=("9.0",))
    words = ["--variant", "torch-cpu", "--output", tmp_path / "out", "--arch", "9.0"]
    done = kci("build", SWIGLU, *words)
    assert done.code == 2
    assert not (tmp_path / "out").exists()


def test_an_error_names_the_file_from_where_the_user_stands(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An annotation of `torch-ext/...` would be about no file of a repository of several
    kernels.
    """
    kernel = noarch_kernel(tmp_path / "kernels" / "just-python")
    (kernel / "torch-ext" / "just_python" / "gone.py").symlink_to("nowhere.py")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    for place in ("kernels/just-python", str(kernel)):
        failed = kci("build", place, "--variant", "torch-cpu", "--output", "out")
        assert failed.code != 0
        assert f"file={place}/torch-ext/just_python/gone.py::" in failed.stdout + failed.stderr


METADATA = (
    '{"name": "relu", "id": "_relu_cpu_abc", "version": 1, "license": "MIT", "python-depends": [], '
    '"kernel-depends": [], "backend": {"type": "cpu"}}'
)


def test_a_variant_of_the_kernel_may_be_replaced_and_nothing_else(tmp_path: Path) -> None:
    variant = write_tree(tmp_path / "v", {"metadata.json": METADATA})
    (tmp_path / "empty").mkdir()
    for place in (variant, tmp_path / "missing", tmp_path / "empty"):
        check_replaceable(place, "relu")
    home = write_tree(tmp_path / "home", {"__init__.py": "", "thesis.txt": "years of work"})
    link = tmp_path / "link"
    link.symlink_to(home)
    other = write_tree(tmp_path / "other", {"metadata.json": METADATA.replace("relu", "gelu")})
    for place in (home, home / "thesis.txt", link, other):
        failure(UnsafeError, "in the way", check_replaceable, place, "relu")
    assert (home / "thesis.txt").read_text() == "years of work"
