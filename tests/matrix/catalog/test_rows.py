"""Editions of the catalog: what they hold, how old they are, and that a bad file is refused."""

from __future__ import annotations

from datetime import date
from pathlib import Path
from types import SimpleNamespace

import pytest

from cli.runner import ended, kci
from conftest import failure, refusal
from kci.config.document import parse_document
from kci.errors import UsageError
from kci.matrix.catalog.loading import (
    DEFAULT_EDITION,
    editions,
    freshness,
    interpret_edition,
    load_catalog,
    outside_range,
)
from kci.matrix.catalog.rows import Catalog

HEAD = 'name = "x"\nas-of = 2026-01-01\nsource = "y"\n'
ROW = f'{HEAD}[[row]]\ntorch = "2.13"\n'


@pytest.mark.rule("KCI120", triggers=False)
def test_a_date_is_held_in_one_spelling() -> None:
    """Editions are compared by it; the default one is the newest."""
    assert editions()[-1] == DEFAULT_EDITION
    text = ROW.replace("2026-01-01", '"20260917"') + 'backend = "cpu"\nsystems = []'
    assert interpret_edition(parse_document(text.encode(), "x.toml")).as_of == "2026-09-17"


def test_rows_outside_the_range_come_from_the_neighbors(catalog: Catalog) -> None:
    rows, removed = outside_range(catalog)
    found = {(row.torch.text, Path(row.line()[0]).stem) for row in rows}
    assert found == {("2.11", "2026-08-20"), ("2.11", "2026-03-25"), ("2.14", "2026-09-17")}
    supported = {row.key for row in catalog.rows if row.bundled}
    assert not supported & {row.key for row in rows}
    assert removed == []


@pytest.mark.rule("KCI120", triggers=True)
@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "the file lacks the key `as-of`"),
        (f"{HEAD}row = 1", "row"),
        (f'{ROW}backend = "gpu"\nsystems = []', "backend"),
        (f'{ROW}backend = "cuda"\nsystems = []', "a cuda row needs `compute` versions"),
        (
            f'{ROW}backend = "cpu"\ncompute = ["1.0"]\nsystems = []',
            "a cpu row has no `compute` versions",
        ),
        (f'{ROW}backend = "cpu"\nsystems = ["../x"]', "'../x' is not a system"),
        (HEAD.replace("2026-01-01", '"lately"') + "row = []", "`as-of` must be a date"),
    ],
)
def test_a_bad_file_is_refused(tmp_path: Path, text: str, said: str) -> None:
    (tmp_path / "mine.toml").write_text(text)
    found = refusal(load_catalog, str(tmp_path / "mine.toml"))
    assert {item.rule for item in found} == {"KCI120"}
    assert any(said in item.message for item in found)
    failure(UsageError, "neither a catalog file nor an edition", load_catalog, "2020-01-01")


def test_a_flavour_of_tvm_ffi_stays_until_somebody_says_that_it_went(catalog: Catalog) -> None:
    kept = {
        (row.backend, row.compute and row.compute.text): row.tvm_ffi_unknown_since
        for row in load_catalog().rows
        if row.tvm_ffi
    }
    unseen = dict.fromkeys(
        [("cpu", None), ("cuda", "12.6"), ("cuda", "13.0"), ("xpu", "2026.0.0")], "2026-09-04"
    )
    assert kept == unseen | {("cuda", "13.2"): None}
    now, then = (
        {(row.backend, row.system) for row in one.rows if row.tvm_ffi}
        for one in (load_catalog(), catalog)
    )
    assert now == then


@pytest.mark.parametrize(
    ("edition", "today", "days", "outdated"),
    [
        ("2026-09-17", "2026-10-01", 14, False),
        ("2026-09-17", "2026-11-21", 65, True),
        ("2026-08-20", "2026-09-18", 29, True),
        ("2026-08-20", "2026-09-01", 12, False),
    ],
)
def test_a_catalog_is_outdated_if_it_is_old_or_a_newer_one_is_there(
    edition: str, today: str, days: int, outdated: bool
) -> None:
    found = freshness(load_catalog(edition), date.fromisoformat(today))
    assert (found.days, found.outdated) == (days, outdated)


@pytest.mark.parametrize(("released", "code"), [(["2.14", "2.15"], 0), (["2.17", "2.15"], 1)])
def test_a_torch_that_is_not_bundled_is_named(
    released: list[str], code: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = SimpleNamespace(torch=dict.fromkeys(released))
    monkeypatch.setattr("kci.builders.toolchains.data.toolchains", lambda: known)
    monkeypatch.setattr("kci.matrix.catalog.loading.OUTDATED_DAYS", 10**6)
    said = ended(kci("catalog", "outdated"), code).splitlines()[1:]
    assert [line.split()[1] for line in said] == ["2.15", "2.17"][: code + 1]
