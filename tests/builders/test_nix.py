"""The nix builder.

Nix does not run here, so a stand-in takes its place: it checks the arguments and makes a result.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from buildkit import CPU, copy_kernel, only_these, program, quiet, request, with_changes
from conftest import failure
from kci.builders import build_variant, plan_commands
from kci.builders.dispatch import build_with_nix, nix_command
from kci.errors import BuildFailedError, MissingToolError

STAND_IN = """
[ "$*" = "build .#redistributable.{name} -L --no-link --print-out-paths" ] || exit 64
[ -f flake.nix ] || exit 65
echo "building..." >&2
mkdir -p {store}/{inner}
echo '{{}}' > {store}/{inner}/metadata.json
echo 'x' > {store}/{inner}/__init__.py
chmod -R a-w {store}
echo {store}
"""


@pytest.mark.parametrize("inner", [".", CPU])
def test_the_result_is_copied_with_its_metadata(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, inner: str
) -> None:
    kernel = copy_kernel("plus-one", tmp_path)
    (kernel / "flake.nix").write_text("{}")
    asked = request(kernel, CPU, tmp_path)
    folder = only_these(monkeypatch, tmp_path, "mkdir", "chmod")
    program(folder, "nix", STAND_IN.format(name=CPU, store=tmp_path / "store", inner=inner))
    built = build_variant(with_changes(asked, builder="nix"), quiet)
    assert built.sealed
    assert sorted(path.name for path in asked.output.iterdir()) == ["__init__.py", "metadata.json"]
    assert {path.stat().st_mode & 0o777 for path in asked.output.iterdir()} == {0o644}


def test_nix_compiles_with_as_many_cores_as_jobs_were_asked_for(tmp_path: Path) -> None:
    asked = request(copy_kernel("plus-one", tmp_path), CPU, tmp_path)
    assert "--cores" not in nix_command(asked)
    assert nix_command(with_changes(asked, jobs=4))[-2:] == ["--cores", "4"]


def test_a_machine_without_nix_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = request(copy_kernel("plus-one", tmp_path), CPU, tmp_path)
    only_these(monkeypatch, tmp_path)
    failure(MissingToolError, "nix is not installed on this machine", build_with_nix, asked, quiet)


@pytest.mark.parametrize(
    ("script", "says"),
    [("echo no such attribute; exit 1", "no such attribute"), ("echo /nowhere", "no variant")],
)
def test_a_failure_carries_what_nix_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str, says: str
) -> None:
    asked = request(copy_kernel("plus-one", tmp_path), CPU, tmp_path)
    (asked.kernel_dir / "flake.nix").write_text("{}")
    program(only_these(monkeypatch, tmp_path), "nix", script)
    failure(BuildFailedError, says, build_with_nix, asked, quiet)
    assert not asked.output.exists()


def test_a_kernel_without_a_flake_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = request(copy_kernel("plus-one", tmp_path), CPU, tmp_path)
    program(only_these(monkeypatch, tmp_path), "nix", "exit 0")
    failure(MissingToolError, r"flake\.nix", build_with_nix, asked, quiet)


def test_a_dry_run_shows_the_command(tmp_path: Path) -> None:
    asked = request(copy_kernel("plus-one", tmp_path), CPU, tmp_path)
    lines = plan_commands(with_changes(asked, builder="nix"))
    assert f"nix build '.#redistributable.{CPU}' -L --no-link --print-out-paths" in lines
