"""The reference's published table of variants becomes an edition."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from conftest import torch_kernel
from kci.catalog.loading import editions, load_catalog
from kci.catalog.rows import Catalog, Row
from kci.errors import FindingsError
from kci.matrix.names import Kind, variant_name
from kci.matrix.next_edition import edition_toml, read_published
from kci.matrix.selection import select

KNOWN = [row for name in editions() for row in load_catalog(name).rows]
FILE = Path(__file__).parent / "build-variants.json"


def publish(catalog: Catalog) -> dict[str, dict[str, list[str]]]:
    """What the reference would publish for a catalog: the full-ABI names of its bundled rows."""
    table: dict[str, dict[str, list[str]]] = {}
    for row in catalog.rows:
        if row.bundled:
            name = variant_name(Kind.FULL, row.backend, row.system, row.torch, row.compute)
            table.setdefault(row.system, {}).setdefault(str(row.backend), []).append(name)
    return {system: {backend: sorted(names) for backend, names in of.items()} for system, of in table.items()}


def imported(tmp_path: Path, table: object, known: list[Row] = KNOWN, as_of: str = "2026-08-20") -> Catalog:
    (tmp_path / "build-variants.json").write_text(json.dumps(table))
    published = read_published(tmp_path / "build-variants.json", known)
    text = edition_toml(published, name="mine", as_of=as_of, source='a "table"\x7f')
    (tmp_path / "mine.toml").write_text(text)
    return load_catalog(str(tmp_path / "mine.toml"))


def test_the_fixture_is_the_table_of_august(catalog: Catalog) -> None:
    assert json.loads(FILE.read_text()) == publish(catalog)
    assert sum(len(names) for of in publish(catalog).values() for names in of.values()) == 26


@pytest.mark.parametrize("name", editions())
def test_an_imported_edition_selects_what_the_original_does(name: str, tmp_path: Path) -> None:
    original = load_catalog(name)
    made = imported(tmp_path, publish(original), as_of=original.as_of)
    assert (made.name, made.as_of, made.source) == ("mine", original.as_of, 'a "table"\x7f')
    bundled = [row for row in original.rows if row.bundled]
    assert sorted(row.key for row in made.rows) == sorted(row.key for row in bundled)
    kernel = torch_kernel(["cpu", "cuda", "metal", "rocm", "xpu"], torch='stable-abi = { cuda = "2.9" }')
    assert select(kernel, made).variants == select(kernel, original).variants


def test_without_what_is_known_a_version_is_as_short_as_in_the_name(tmp_path: Path) -> None:
    table = {"x86_64-linux": {"xpu": ["torch212-cxx11-xpu20253-x86_64-linux"]}}
    assert imported(tmp_path, table, known=[]).rows[0].compute == (2025, 3)
    assert imported(tmp_path, table).rows[0].compute == (2025, 3, 2)


def test_rows_that_differ_in_version_and_system_only_are_one_table(tmp_path: Path) -> None:
    imported(tmp_path, publish(load_catalog("2026-11-23")))
    text = (tmp_path / "mine.toml").read_text()
    assert text.count("[[row]]") == 10
    assert 'compute = ["12.6", "13.0", "13.2"]\nsystems = ["x86_64-linux", "aarch64-linux"]' in text


@pytest.mark.rule("KCI120", triggers=True)
@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "not a build-variants.json"),
        ("[]", "not a build-variants.json"),
        ('{"x86_64-linux": {"cuda": [1]}}', "not a build-variants.json"),
        ("{}", "names no variant"),
        ("[" * 100_000, "not a build-variants.json"),
        ('{"x86_64-linux":\n {"cuda": ["torch213"]}}', "'torch213' is not a variant name"),
        ('{"x86_64-linux":\n {"cuda": ["torch-cuda"]}}', "'torch-cuda' is not a full-ABI variant"),
        ('{"x86_64-linux":\n {"rocm": ["torch213-cxx11-cu130-x86_64-linux"]}}', "and is for another"),
        ('{"aarch64-linux":\n {"cuda": ["torch213-cxx11-cu130-x86_64-linux"]}}', "and is for another"),
    ],
)
def test_what_is_no_such_table_is_refused(tmp_path: Path, text: str, said: str) -> None:
    (tmp_path / "x.json").write_text(text)
    with pytest.raises(FindingsError) as caught:
        read_published(tmp_path / "x.json", KNOWN)
    (problem,) = caught.value.diagnostics
    assert problem.rule == "KCI120"
    assert said in problem.message
    if "\n" in text:
        assert problem.line == 2


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(FindingsError, match="cannot be read"):
        read_published(tmp_path / "x.json", KNOWN)
