"""The next edition from PyPI, which has one build of a release for each system; its metadata say what it is for."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from conftest import torch_kernel
from kci.catalog.listings import read_indexes
from kci.catalog.loading import load_catalog
from kci.catalog.rows import Catalog
from kci.config.values import Backend, Version
from kci.errors import FindingsError
from kci.matrix.next_edition import Proposal, propose, read_published
from kci.matrix.selection import select
from kci.moves.wheel_metadata import built_for, own_build
from kci.toolchains.wheel_ranges import WheelFile
from matrix.test_next_edition import LINUX, NEW, listing, proposed, wheels
from matrix.test_reference_table import publish


@pytest.fixture
def current() -> Catalog:
    """The edition that the proposals follow."""
    return load_catalog("2026-09-17")


PYPI = [
    f"torch-{release}-cp313-cp313-{platform}.whl"
    for release in ("2.13.0", "2.14.0", "2.14.1", "2.15.0")
    for platform in (*LINUX, "macosx_14_0_arm64", "win_amd64")
]
TOOLKITS = {"2.14.1": "13.0.3", "2.15.0": "13.2.2"}
"""What the metadata of these wheels on PyPI depend on, as of 2026-11-23; both for x86_64 and aarch64."""


def pypi_page(tmp_path: Path, *, metadata: bool = True) -> Path:
    for release, toolkit in TOOLKITS.items() if metadata else ():
        for platform in LINUX:
            name = f"torch-{release}-cp313-cp313-{platform}.whl.metadata"
            needed = f'cuda-toolkit[cublas,cudart,nvrtc]=={toolkit}; platform_system == "Linux"'
            (tmp_path / name).write_text(f"Name: torch\nVersion: {release}\nRequires-Dist: {needed}\n")
    return listing(tmp_path, PYPI)


def from_pypi(tmp_path: Path, current: Catalog, *, metadata: bool = True) -> Proposal:
    page_of_index = pypi_page(tmp_path, metadata=metadata)
    return propose(current, read_indexes([page_of_index], own_build=partial(own_build, Path())))


def kept(made: Proposal, torch: str) -> set[tuple[str, str | None, str]]:
    return {
        (str(row.backend), row.compute and row.compute.text, row.system) for row in made.rows if row.torch.text == torch
    }


def test_the_metadata_of_a_wheel_say_which_cuda_it_is_for(tmp_path: Path, current: Catalog) -> None:
    made = from_pypi(tmp_path, current)
    assert kept(made, "2.15") == {
        *(("cuda", "13.2", f"{cpu}-linux") for cpu in ("aarch64", "x86_64")),
        *(("cpu", None, system) for system in ("aarch64-darwin", "aarch64-linux", "x86_64-linux")),
        ("metal", None, "aarch64-darwin"),
    }
    assert "13.0" in {row.compute.text for row in made.rows if row.torch.text == "2.14" and row.compute}


def test_an_index_with_one_build_does_not_end_what_it_cannot_list(tmp_path: Path, current: Catalog) -> None:
    """Nor a tvm-ffi: that of torch 2.13 with CUDA 13.2 goes on with torch 2.15."""
    made = from_pypi(tmp_path, current)
    assert kept(made, "2.14") == {
        (str(row.backend), row.compute and row.compute.text, row.system)
        for row in current.rows
        if row.torch.text == "2.14"
    }
    having = {(row.torch.text, row.compute and row.compute.text, row.system) for row in made.rows if row.tvm_ffi}
    assert having == {("2.15", "13.2", "x86_64-linux"), ("2.15", "13.2", "aarch64-linux")}
    (told,) = (line for line in made.unknown if "does not tell" in line)
    open_ = "cuda 12.6, cuda 13.0, rocm 7.2, rocm 7.14, xpu 2026.1.0, cuda 13.4"
    assert told.startswith(f"torch 2.15 with {open_}: an index with one build for a system does not tell.")


def test_without_its_metadata_a_wheel_is_for_no_cuda_that_is_known(tmp_path: Path, current: Catalog) -> None:
    made = from_pypi(tmp_path, current, metadata=False)
    assert not [item for item in kept(made, "2.15") if item[0] == "cuda"]
    assert any("cuda 13.2" in line for line in made.unknown)


def test_the_edition_of_november_is_what_pypi_and_the_table_of_september_lead_to(
    tmp_path: Path, current: Catalog
) -> None:
    (tmp_path / "table.json").write_text(json.dumps(publish(current)))
    wheels = read_indexes([pypi_page(tmp_path)], own_build=partial(own_build, Path()))
    made = propose(current, wheels, read_published(tmp_path / "table.json", current.rows))
    shipped = load_catalog("2026-11-23")
    assert {(*row[:4], row.bundled, row.tvm_ffi) for row in made.rows} == {
        (*row.key, row.bundled, row.tvm_ffi) for row in shipped.rows
    }


def test_metadata_without_a_toolkit_are_those_of_a_build_for_the_cpu() -> None:
    old = 'Requires-Dist: nvidia-cuda-runtime-cu12==12.8.90; platform_machine == "x86_64"\n'
    assert built_for(f"Name: torch\n{old}".encode()) == (Backend.CUDA, Version.parse("12.8"))
    assert built_for(b"Name: torch\nRequires-Dist: filelock\n") == (Backend.CPU, None)
    assert built_for(b"Name: torch\nRequires-Dist: cuda-toolkit==?; \x00\n\xff") == (Backend.CPU, None)


def test_a_wheel_on_an_index_is_not_downloaded_for_its_metadata(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[str, ...]] = []

    def find(*words: str) -> WheelFile:
        asked.append(words)
        return WheelFile("torch.whl", "https://files.example.invalid/torch.whl")

    def take(_wheel: WheelFile, wanted: Callable[[str], str | None], into: Path) -> None:
        names = [name for name in ("torch/__init__.py", "torch-2.15.0.dist-info/METADATA") if wanted(name)]
        assert names == ["torch-2.15.0.dist-info/METADATA"]
        (into / "METADATA").write_text("Name: torch\nRequires-Dist: cuda-toolkit==13.2.2\n")

    monkeypatch.setattr("kci.moves.wheel_metadata.find_wheel", find)
    monkeypatch.setattr("kci.moves.wheel_metadata.extract", take)
    found = own_build(Path(), "https://pypi.example.invalid/simple/torch/", "2.15.0", "aarch64-linux")
    assert found == (Backend.CUDA, Version.parse("13.2"))
    assert asked == [("torch", "2.15.0", "aarch64", "https://pypi.example.invalid/simple")]
    monkeypatch.setattr("kci.moves.wheel_metadata.find_wheel", lambda *_: WheelFile("x", "http://far.invalid/x"))
    with pytest.raises(FindingsError, match="not an address that kci asks"):
        own_build(Path(), "https://pypi.example.invalid/simple/torch/", "2.15.0", "aarch64-linux")


def test_a_nightly_with_the_toolkit_of_a_release_does_not_take_its_stable_abi(tmp_path: Path, current: Catalog) -> None:
    made = proposed(tmp_path, current, [*NEW, *wheels("2.16.0.dev20261120", "cu130", "cu134")])
    names = {variant.name for variant in select(torch_kernel(["cuda"], torch='stable-abi = "2.11"'), made).variants}
    assert {"torch-stable-abi211-cu130-x86_64-linux", "torch-stable-abi211-cu134-x86_64-linux"} <= names
