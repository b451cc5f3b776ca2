"""The nix builder.

Nix does not run here, so a stand-in takes its place: it checks the arguments and makes a result.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from buildkit import CPU, Bare, copy_kernel, only_these, program, quiet, request, with_changes
from conftest import failure
from kci.builders.dispatch import build_variant, build_with_nix, plan_commands
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


def test_a_dry_run_shows_the_command(asked: Request) -> None:
    """With as many cores as jobs were asked for."""
    command = f"nix build '.#redistributable.{CPU}' -L --no-link --print-out-paths"
    for jobs, cores in ((None, ""), (4, " --cores 4")):
        assert command + cores in plan_commands(with_changes(asked, builder="nix", jobs=jobs))


def test_what_is_missing_and_what_nix_said_is_told(asked: Request, bare: Bare) -> None:
    failure(MissingToolError, "nix is not installed on this machine", build_with_nix, asked, quiet)
    for script, says in (
        ("echo no such attribute; exit 1", "no such attribute"),
        ("echo /nowhere", "no variant"),
        ("echo nothing", "no variant"),
    ):
        bare.add("nix", script)
        failure(BuildFailedError, says, build_with_nix, asked, quiet)
        assert not asked.output.exists()
    (asked.kernel_dir / "flake.nix").unlink()
    failure(MissingToolError, r"flake\.nix", build_with_nix, asked, quiet)
