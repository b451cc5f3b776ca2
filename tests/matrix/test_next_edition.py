"""bin/next_edition.py: the next edition of the catalog, from pages of wheel indexes and the
reference's table.
"""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace

import pytest

from conftest import load_script
from kci.config.document import parse_document
from kci.config.values import text_of
from kci.matrix.catalog.loading import interpret_edition, load_catalog
from kci.matrix.catalog.rows import Catalog
from kci.matrix.variants import Kind, variant_name

next_edition = load_script("next_edition")
LINUX = ("manylinux_2_28_x86_64", "manylinux_2_28_aarch64")


def wheels(torch: str, *flavours: str) -> list[str]:
    made = []
    for flavour in flavours:
        platforms = LINUX if flavour.startswith(("cpu", "cu")) else LINUX[:1]
        made += [f"torch-{torch}+{flavour}-cp313-cp313-{platform}.whl" for platform in platforms]
        made += [f"torch-{torch}+{flavour}-cp313-cp313t-{platforms[0]}.whl"]
    if "cpu" in flavours:
        made.append(f"torch-{torch}-cp313-none-macosx_14_0_arm64.whl")
        made.append(f"torch-{torch}+cpu-cp313-cp313-win_amd64.whl")
    return made


RELEASES = [
    *wheels("2.13.0", "cpu", "cu126", "cu130", "cu132", "rocm7.1", "rocm7.2", "xpu"),
    *wheels("2.14.0", "cpu", "cu126", "cu130", "cu132", "rocm7.2", "rocm7.14", "xpu"),
    *wheels("2.14.1", "cpu", "cu126", "cu130", "cu132", "rocm7.2", "rocm7.14", "xpu"),
]
NEW = [*RELEASES, *wheels("2.15.0", "cpu", "cu130", "cu134", "rocm7.14", "xpu")]


@pytest.fixture
def current() -> Catalog:
    """The edition that the proposals follow."""
    return load_catalog("2026-09-17")


def listing(tmp_path: Path, names: list[str]) -> Path:
    """As pip reads it; the plus sign is escaped in links."""
    link = '<a href="/whl/{}#sha256=0123">{}</a><br/>\n'
    links = "".join(link.format(name.replace("+", "%2B"), name) for name in names)
    file = tmp_path / "index.html"
    head = "<!DOCTYPE html><html><body><h1>Links for torch</h1>\n"
    file.write_text(f"{head}{links}</body></html>\n")
    return file


def propose(current: Catalog, page_of_index: Path, table: Path | None = None) -> SimpleNamespace:
    """The rows, what is unknown, and the file that has both."""
    published = next_edition.read_table(table.read_bytes(), current.rows) if table else []
    indexes = next_edition.read_indexes([str(page_of_index)])
    rows, unknown = next_edition.propose(current, indexes, published)
    named = {"name": "2026-11-21", "source": 'a "table"', "neighbors": ["2026-09-17"]}
    text = next_edition.edition_toml(rows, unknown, **named)
    return SimpleNamespace(rows=rows, unknown=unknown, text=text)


def proposed(
    tmp_path: Path, current: Catalog, names: list[str], table: Path | None = None
) -> Catalog:
    made = propose(current, listing(tmp_path, names), table)
    return interpret_edition(parse_document(made.text.encode(), "new.toml"))


def bundled(catalog: Catalog) -> set[tuple[str, str, str | None, str]]:
    rows = [(row, row.compute and row.compute.minor_text) for row in catalog.rows if row.bundled]
    return {(row.torch.minor_text, str(row.backend), compute, row.system) for row, compute in rows}


def test_a_new_release_moves_the_range(tmp_path: Path, current: Catalog) -> None:
    made = proposed(tmp_path, current, NEW)
    assert {torch for torch, *_ in bundled(made)} == {"2.14", "2.15"}
    assert ("2.15", "cuda", "13.4", "aarch64-linux") in bundled(made)
    assert ("2.15", "metal", None, "aarch64-darwin") in bundled(made)
    windows = [row for row in made.rows if row.system.endswith("windows")]
    assert not windows, "nobody builds for Windows today"
    assert (made.name, made.as_of, made.source) == ("2026-11-21", "2026-11-21", 'a "table"')


def test_a_tvm_ffi_outlives_the_row_that_had_it_or_its_end_is_told(tmp_path: Path) -> None:
    """Its variants are named after the toolkit and not after torch: whoever loads them has not
    changed anything.
    """
    made = propose(load_catalog("2026-08-20"), listing(tmp_path, RELEASES))
    rows = [row for row in made.rows if row.tvm_ffi]
    having = {(str(row.backend), str(row.compute), row.torch.text, row.system) for row in rows}
    assert having == {
        ("cpu", "None", "2.14", "aarch64-darwin"),
        *(
            (*versions, f"{cpu}-linux")
            for cpu in ("aarch64", "x86_64")
            for versions in (
                ("cpu", "None", "2.14"),
                ("cuda", "12.6", "2.14"),
                ("cuda", "13.0", "2.14"),
                ("cuda", "13.2", "2.13"),
            )
        ),
        ("xpu", "2026.0.0", "2.13", "x86_64-linux"),
    }
    told = [line for line in made.unknown if line.startswith("tvm-ffi")]
    assert told[4].startswith(
        "tvm-ffi 0.1 of cuda 12.6 on x86_64-linux: its row, with torch 2.12, is gone; that with "
        "torch 2.14 has it here."
    )
    assert told[-1] == (
        "tvm-ffi 0.1 of xpu 2025.3.2 on x86_64-linux: its row, with torch 2.12, is gone; that with "
        "torch 2.13 2026.0.0 has it here. Does the reference build it there?"
    )
    assert not [line for line in told if "its variants end" in line]
    assert all(f"# {line}" in made.text for line in told)


def test_the_table_says_which_toolkits_users_get(tmp_path: Path, current: Catalog) -> None:
    place, both = ("cuda", "x86_64-linux"), ((2, 14), (2, 15))
    names = [variant_name(Kind.FULL, *place, torch, (13, 0)) for torch in both]
    table = tmp_path / "build-variants.json"
    table.write_text(json.dumps({"x86_64-linux": {"cuda": names}}))
    made = proposed(tmp_path, current, NEW, table)
    assert bundled(made) == {(torch, "cuda", "13.0", "x86_64-linux") for torch in ("2.14", "2.15")}


# --- an index with one build of a release ---------------------------------------------------------

PYPI = [
    f"torch-{release}-cp313-cp313-{platform}.whl"
    for release in ("2.13.0", "2.14.0", "2.14.1", "2.15.0")
    for platform in (*LINUX, "macosx_14_0_arm64", "win_amd64")
]
TOOLKITS = {"2.14.1": "13.0.3", "2.15.0": "13.2.2"}
"""What the metadata of these wheels on PyPI depend on, as of 2026-11-23; both for x86_64 and
aarch64."""


def test_the_metadata_of_a_wheel_say_which_cuda_it_is_for(tmp_path: Path, current: Catalog) -> None:
    for release, toolkit in TOOLKITS.items():
        for platform in LINUX:
            name = f"torch-{release}-cp313-cp313-{platform}.whl.metadata"
            needed = f'cuda-toolkit[cublas,cudart,nvrtc]=={toolkit}; platform_system == "Linux"'
            text = f"Name: torch\nVersion: {release}\nRequires-Dist: {needed}\n"
            (tmp_path / name).write_text(text)
    made = propose(current, listing(tmp_path, PYPI))
    newest = [row for row in made.rows if row.torch.text == "2.15"]
    assert {(str(row.backend), row.compute and row.compute.text, row.system) for row in newest} == {
        *(("cuda", "13.2", f"{cpu}-linux") for cpu in ("aarch64", "x86_64")),
        *(("cpu", None, system) for system in ("aarch64-darwin", "aarch64-linux", "x86_64-linux")),
        ("metal", None, "aarch64-darwin"),
    }
    assert "13.0" in {text_of(row.compute) for row in made.rows if row.torch.text == "2.14"}
