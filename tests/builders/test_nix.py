"""The nix builder.

Nix does not run here, so a stand-in takes its place: it checks the arguments and makes a result.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from buildkit import CPU, Bare, copy_kernel, only_these, program, quiet, request, with_changes
from conftest import failure
from kci.builders.dispatch import build_variant, build_with_nix, nix_command, plan_commands
from kci.builders.request import Request
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


@pytest.fixture
def asked(tmp_path: Path) -> Request:
    made = request(copy_kernel("plus-one", tmp_path), CPU, tmp_path)
    (made.kernel_dir / "flake.nix").write_text("{}")
    return made


@pytest.mark.parametrize("inner", [".", CPU])
def test_the_result_is_copied_with_its_metadata(
    asked: Request, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, inner: str
) -> None:
    folder = only_these(monkeypatch, tmp_path, "mkdir", "chmod")
    program(folder, "nix", STAND_IN.format(name=CPU, store=tmp_path / "store", inner=inner))
    built = build_variant(with_changes(asked, builder="nix"), quiet)
    assert built.sealed
    assert sorted(path.name for path in asked.output.iterdir()) == ["__init__.py", "metadata.json"]
    assert {path.stat().st_mode & 0o777 for path in asked.output.iterdir()} == {0o644}


def test_nix_compiles_with_as_many_cores_as_jobs_were_asked_for(asked: Request) -> None:
    assert "--cores" not in nix_command(asked)
    assert nix_command(with_changes(asked, jobs=4))[-2:] == ["--cores", "4"]


@pytest.mark.usefixtures("bare")
def test_a_machine_without_nix_says_so(asked: Request) -> None:
    failure(MissingToolError, "nix is not installed on this machine", build_with_nix, asked, quiet)


@pytest.mark.parametrize(
    ("script", "says"),
    [("echo no such attribute; exit 1", "no such attribute"), ("echo /nowhere", "no variant")],
)
def test_a_failure_carries_what_nix_said(
    asked: Request, bare: Bare, script: str, says: str
) -> None:
    bare.add("nix", script)
    failure(BuildFailedError, says, build_with_nix, asked, quiet)
    assert not asked.output.exists()


def test_a_kernel_without_a_flake_is_named(asked: Request, bare: Bare) -> None:
    (asked.kernel_dir / "flake.nix").unlink()
    bare.add("nix")
    failure(MissingToolError, r"flake\.nix", build_with_nix, asked, quiet)


def test_a_dry_run_shows_the_command(asked: Request) -> None:
    lines = plan_commands(with_changes(asked, builder="nix"))
    assert f"nix build '.#redistributable.{CPU}' -L --no-link --print-out-paths" in lines
