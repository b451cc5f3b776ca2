"""Overlays: what they change about an edition, and that each change keeps its place."""

from __future__ import annotations

from pathlib import Path
from textwrap import dedent

import pytest

from conftest import refusal, torch_kernel
from kci.config.discovery import RepositorySettings
from kci.config.document import parse_document
from kci.config.reader import read_as
from kci.config.settings import Settings
from kci.config.values import text_of
from kci.matrix.catalog.loading import apply_overlay, load_catalog, overlays_of, read_overlay
from kci.matrix.catalog.rows import Catalog, Overlay
from kci.matrix.selection import compute_matrix, select


def overlay(text: str) -> Overlay:
    return read_overlay(parse_document(dedent(text).encode(), "mine.toml"))


def laid(catalog: Catalog, text: str) -> Catalog:
    return apply_overlay(catalog, overlay(text))


def table(catalog: Catalog) -> list[tuple[str, ...]]:
    return [(row.torch.text, row.backend, text_of(row.compute), row.system) for row in catalog.rows]


def test_keep_and_drop_narrow_and_say_where(catalog: Catalog) -> None:
    keep = 'keep = ["torch == newest or backend != cuda"]\n'
    narrowed = laid(catalog, f'{keep}drop = [\n"cuda == 13.2",\n"rocm < 7.2",\n]\n')
    cuda = {(torch, toolkit) for torch, backend, toolkit, _ in table(narrowed) if backend == "cuda"}
    assert cuda == {("2.13", "12.6"), ("2.13", "13.0")}
    assert len(narrowed.rows) + len(narrowed.removed) == len(catalog.rows)
    kept = [row for row in catalog.rows if row in narrowed.rows]
    assert kept == list(narrowed.rows), "the order stays"
    lines = {(row.compute.text, why.place) for row, why in narrowed.removed if row.compute}
    assert {("13.2", ("mine.toml", 3)), ("7.1", ("mine.toml", 4))} <= lines
    assert ("12.6", ("mine.toml", 1)) in lines
    assert narrowed.name == "2026-08-20+mine.toml"


def test_rows_are_added_at_the_end_or_replace_the_same_toolchain(catalog: Catalog) -> None:
    text = """
        edition = "2026-08-20"
        [[row]]
        torch = "2.13.0"
        backend = "metal"
        systems = ["aarch64-darwin"]
        bundled = false
        [[row]]
        torch = "2.14"
        backend = "cuda"
        compute = ["13.4"]
        systems = ["x86_64-windows"]
    """
    changed = laid(catalog, text)
    assert table(changed)[:-1] == [
        ("2.13.0", *row[1:]) if row[:2] == ("2.13", "metal") else row for row in table(catalog)
    ]
    assert table(changed)[-1] == ("2.14", "cuda", "13.4", "x86_64-windows")
    assert changed.rows[-1].line() == ("mine.toml", 8)
    (metal,) = [row for row in changed.rows if row.torch.text == "2.13.0"]
    assert (metal.bundled, metal.line()) == (False, ("mine.toml", 3))
    assert changed.removed == ()


CANDIDATE = """
[[row]]
torch = "2.16"
backend = "cpu"
systems = ["x86_64-linux"]
{exact}
"""


@pytest.mark.parametrize(
    ("exact", "wheel"),
    [
        ('release = "2.16.0rc1"\nindex = "test"', "2.16.0rc1@test"),
        ('release = "2.16.0.dev20261120"\nindex = "nightly/cpu"', "2.16.0.dev20261120@nightly/cpu"),
        (
            'release = "2.16.0+cpu"\nindex = "https://example/simple"',
            "2.16.0+cpu@https://example/simple",
        ),
        ('release = "2.16.0"', "2.16.0@"),
        ("", None),
    ],
)
def test_a_row_may_name_torch_and_index(exact: str, wheel: str | None, catalog: Catalog) -> None:
    changed = laid(catalog, CANDIDATE.format(exact=exact))
    variants = select(torch_kernel(["cpu"]), changed).variants
    (made,) = [one for one in variants if text_of(one.torch) == "2.16"]
    assert made.name == "torch216-cxx11-cpu-x86_64-linux"
    assert (made.wheel, made.loads) == (wheel, (wheel or "2.16",))


@pytest.mark.rule("KCI201", triggers=True)
def test_a_backend_that_is_not_declared_is_the_reason_before_an_overlay(catalog: Catalog) -> None:
    narrowed = laid(catalog, 'drop = ["rocm == 7.1"]')
    dropped = select(torch_kernel(["cuda"]), narrowed, explain=True).dropped
    assert {item.rule for item in dropped if item.backend == "rocm"} == {"KCI201"}
    assert len([item for item in dropped if item.compute == "7.1"]) == 2


@pytest.mark.rule("KCI213", triggers=False)
def test_an_overlay_that_removes_no_row_drops_nothing(catalog: Catalog) -> None:
    same = laid(catalog, 'keep = ["torch >= 2.0"]\ndrop = ["torch == 2.1"]')
    made = torch_kernel(["cuda", "rocm"])
    assert select(made, same, explain=True) == select(made, catalog, explain=True)


@pytest.mark.rule("KCI120", triggers=False)
def test_a_file_is_loaded_over_the_edition_that_it_names(tmp_path: Path) -> None:
    file = tmp_path / "older.toml"
    file.write_text('edition = "2026-03-25"\ndrop = ["torch == 2.10"]\n')
    loaded = load_catalog(str(file))
    assert {row.torch.text for row in loaded.rows} == {"2.11"}
    assert loaded.as_of == "2026-03-25"


@pytest.mark.rule("KCI120", triggers=True)
@pytest.mark.parametrize("base", ["a.toml", "b.toml", "./a.toml"])
def test_overlays_that_change_each_other_in_a_circle_are_refused(
    base: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.toml").write_text(f'edition = "{base}"\n')
    (tmp_path / "b.toml").write_text('edition = "a.toml"\n')
    (problem,) = refusal(load_catalog, "a.toml")
    assert (problem.rule, problem.line, "leads back to" in problem.message) == ("KCI120", 1, True)


@pytest.mark.rule("KCI128", triggers=True)
def test_every_bad_expression_is_told_with_its_place() -> None:
    text = 'keep = ["torch >= 2.12", "torhc == 2.13"]\ndrop = ["cuda > newer"]\n'
    found = refusal(overlay, text)
    places = [(item.rule, item.line, item.column) for item in found]
    assert places == [("KCI128", 1, 27), ("KCI128", 2, 17)]
    assert found[0].hint == "did you mean `torch`?"


EXACT = "`release` must be one of torch 2.16, and `index` part of torch's indexes or an address"


@pytest.mark.rule("KCI120", triggers=True)
@pytest.mark.rule("KCI128", triggers=False)
@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("edition = 5", "`edition` must be a string"),
        ('keep = "torch == 2.13"', "`keep` must be an array"),
        ('drop = []\nname = "x"', "`name` is not a key"),
        ('drop = []\n[[row]]\ntorch = "2.13"\nbackend = "cpu"\nsystems = ["linux"]',
            "'linux' is not a system"),
        ('drop = []\n[[row]]\ntorch = "2.13"\nbackend = "cuda"\nsystems = []',
            "a cuda row needs `compute` versions"),
        *((CANDIDATE.format(exact=exact), EXACT) for exact in (
            'release = "2.15.0"', 'release = "2.16"', 'release = "2.16.0;x"', 'index = "test"',
            'release = "2.16.0"\nindex = "a b"',
            'release = "2.16.0"\nindex = "https://me:secret@wheels.example/"')),
    ],
)  # fmt: skip
def test_a_bad_overlay_is_refused(text: str, said: str) -> None:
    found = refusal(overlay, text)
    assert {item.rule for item in found} == {"KCI120"}
    assert any(said in item.message for item in found)
    assert "secret" not in str(found)


KCI_TOML = """\
[[overlay]]
drop = ["rocm == 7.1"]

[[overlay]]
kernel = "some-kernel"
drop = [
    "cuda == 13.2",
]

[[overlay]]
kernel = "other-kernel"
replace = true
"""


@pytest.mark.rule("KCI213", triggers=True)
def test_kci_toml_overlays_every_kernel_or_one(catalog: Catalog) -> None:
    document = parse_document(KCI_TOML.encode(), "kci.toml")
    overlays = overlays_of(RepositorySettings(read_as(document, Settings), Path(), document))
    made = torch_kernel(["cuda", "rocm"])
    (found,) = compute_matrix([made], catalog, overlays=overlays, explain=True).kernels
    assert {str(variant.compute) for variant in found.variants} == {"12.6", "13.0", "7.2"}
    gone = [item for item in found.dropped if item.rule == "KCI213"]
    lines = {(item.compute, item.path, item.line) for item in gone}
    assert lines == {("7.1", "kci.toml", 2), ("13.2", "kci.toml", 7)}
    assert len(found.variants) + len(found.dropped) == len(catalog.rows)
