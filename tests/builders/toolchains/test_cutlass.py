"""CUTLASS: a folder, a wheel, or the pinned commit out of a repository, whose content is
checked.
"""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path

import msgspec
import pytest

from act.harness import commit_all
from buildkit import files_in, quiet, write_tree
from conftest import failure
from kci.builders.toolchains import cutlass
from kci.builders.toolchains.cutlass import find_headers, headers_digest
from kci.builders.toolchains.data import CutlassRelease, toolchains
from kci.config.values import Depend
from kci.errors import MissingToolError
from planning import git

FILES = {
    "include/cutlass/version.h": "#define CUTLASS_MAJOR 4\n#define CUTLASS_MINOR 0\n",
    "include/cute/layout.hpp": "// layout\n",
    "tools/util/include/cutlass/util/a.hpp": "// utilities\n",
    "tools/library/src/b.cu": "// not taken\n",
    "examples/big.cu": "// not taken\n",
}
TAKEN = [
    "include/cute/layout.hpp",
    "include/cutlass/version.h",
    "tools/util/include/cutlass/util/a.hpp",
]
PYTHON = Path(sys.executable)


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A repository in the shape of CUTLASS."""
    root = write_tree(tmp_path / "upstream", FILES)
    commit_all(root)
    return root


@pytest.fixture
def release(checkout: Path, monkeypatch: pytest.MonkeyPatch) -> CutlassRelease:
    """The pinned release is the one of that repository."""
    commit = git(checkout, "rev-parse", "HEAD")
    made = CutlassRelease("v4.0.0", commit, headers_digest(checkout))
    lead_to(checkout.as_uri(), made, monkeypatch)
    return made


def lead_to(address: str, release: CutlassRelease, monkeypatch: pytest.MonkeyPatch) -> None:
    """CUTLASS 4.0 is this release, out of this repository."""
    known = toolchains()
    releases = {**known.cutlass, "cutlass_4_0": release}
    repositories = {**known.repositories, "cutlass": address}
    data = msgspec.structs.replace(known, cutlass=releases, repositories=repositories)
    monkeypatch.setattr(cutlass, "toolchains", lambda: data)


@pytest.fixture(autouse=True)
def no_source_dir(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUTLASS_SRC_DIR", raising=False)


def test_every_version_that_a_component_can_name_is_pinned() -> None:
    names = {depend.value for depend in Depend if depend.value.startswith("cutlass")}
    pinned = toolchains().cutlass
    assert set(pinned) == names
    assert {(len(item.commit), len(item.digest)) for item in pinned.values()} == {(40, 64)}


def test_a_version_that_has_a_wheel_comes_as_one(tmp_path: Path) -> None:
    (found,) = find_headers([Depend.CUTLASS_3_8, Depend.TORCH], tmp_path, quiet)
    assert found.setup(PYTHON, found.place)[0][-3:] == [
        "--target",
        str(found.folder),
        "nvidia-cutlass==3.8.0.0",
    ]


def test_what_kci_does_not_have_is_named(tmp_path: Path) -> None:
    failure(MissingToolError, "metal-cpp", find_headers, [Depend.METAL_CPP], tmp_path, quiet)


def test_intels_comes_by_the_version_of_oneapi(
    tmp_path: Path, checkout: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (found,) = find_headers([Depend.SYCL_TLA], tmp_path, quiet, compute="2025.3.2")
    assert "https://github.com/intel/sycl-tla" in found.setup(PYTHON, found.place)[1]
    assert "2fc09973bfdf15755090fcb0e3b6ad236408a992" in found.setup(PYTHON, found.place)[1]
    find = partial(find_headers, [Depend.SYCL_TLA], tmp_path, quiet)
    caught = failure(MissingToolError, r"sycl_tla v0\.9\.2", find, compute="2026.0")
    assert "SYCL_TLA_SRC_DIR" in caught.hint
    failure(MissingToolError, r"oneAPI 2024\.1", find, compute="2024.1")
    monkeypatch.setenv("SYCL_TLA_SRC_DIR", str(checkout))
    said: list[str] = []
    (found,) = find_headers([Depend.SYCL_TLA], tmp_path, said.append, compute="2026.0")
    assert (found.name, found.folder, found.setup(PYTHON, found.place), said) == (
        "sycl_tla",
        checkout,
        [],
        [],
    )


def test_a_repository_gives_the_headers_and_nothing_else(
    tmp_path: Path, release: CutlassRelease
) -> None:
    (found,) = find_headers([Depend.CUTLASS_4_0], tmp_path / "cache", quiet)
    assert not found.complete
    found.ensure(PYTHON, quiet)
    assert files_in(found.folder) == TAKEN
    assert release.commit[:12] in found.folder.name
    assert {path.name for path in found.folder.parent.iterdir()} == {found.folder.name}


def test_other_headers_than_the_pinned_ones_are_refused(
    tmp_path: Path, checkout: Path, release: CutlassRelease, monkeypatch: pytest.MonkeyPatch
) -> None:
    lead_to(checkout.as_uri(), msgspec.structs.replace(release, digest="0" * 64), monkeypatch)
    (found,) = find_headers([Depend.CUTLASS_4_0], tmp_path / "cache", quiet)
    says = rf"does not hold cutlass_4_0 {release.tag}"
    failure(MissingToolError, says, found.ensure, PYTHON, quiet)
    assert not list(found.folder.parent.iterdir()), "nothing of it is kept"


@pytest.mark.parametrize(
    "address", ["ext::sh -c touch% pwned", "--upload-pack=touch pwned", "/nowhere/at/all"]
)
def test_an_address_that_is_none_is_an_error_and_runs_nothing(
    tmp_path: Path, release: CutlassRelease, address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """git's own settings can lead to any address."""
    monkeypatch.chdir(tmp_path)
    lead_to(address, release, monkeypatch)
    (found,) = find_headers([Depend.CUTLASS_4_0], tmp_path / "cache", quiet)
    caught = failure(MissingToolError, "cannot get cutlass_4_0", found.ensure, PYTHON, quiet)
    assert "CUTLASS_SRC_DIR" in caught.hint
    assert not list(tmp_path.rglob("pwned*"))
    assert release.commit not in [path.name for path in found.folder.parent.iterdir()]


def test_a_checkout_named_by_hand_is_taken_as_it_is(
    tmp_path: Path, checkout: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUTLASS_SRC_DIR", str(checkout))
    said: list[str] = []
    (found,) = find_headers([Depend.CUTLASS_4_0], tmp_path, said.append)
    assert (found.folder, found.include) == (checkout, ("include", "tools/util/include"))
    assert (found.setup(PYTHON, None), said) == ([], [])
    find_headers([Depend.CUTLASS_3_8], tmp_path, said.append)
    told = "CUTLASS_SRC_DIR holds CUTLASS 4.0, and the kernel asks for v3.8.0: kci uses it as it is"
    assert said == [told]
    monkeypatch.setenv("CUTLASS_SRC_DIR", str(tmp_path))
    find = partial(find_headers, [Depend.CUTLASS_4_0], tmp_path, quiet)
    failure(MissingToolError, "holds no include", find)
