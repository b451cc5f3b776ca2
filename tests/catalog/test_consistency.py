"""`kci catalog check`: what is inconsistent in an edition or an overlay."""

from __future__ import annotations

from textwrap import dedent

import pytest

from kci.catalog.consistency import check_catalog, check_overlay, known_images
from kci.catalog.loading import editions, interpret_edition, load_catalog
from kci.catalog.overlay import read_overlay
from kci.catalog.rows import Catalog
from kci.config.document import parse_document
from kci.diagnostics import Diagnostic

HEAD = 'name = "x"\nas-of = 2026-01-01\nsource = "y"\n'
RULES = ("KCI121", "KCI122", "KCI123", "KCI124", "KCI125", "KCI126", "KCI127", "KCI129")


def check(rows: str, head: str = "") -> list[Diagnostic]:
    text = HEAD + head + dedent(rows)
    return check_catalog(interpret_edition(parse_document(text.encode(), "mine.toml")))


def found_in_overlay(text: str) -> list[Diagnostic]:
    overlay = read_overlay(parse_document(dedent(text).encode(), "mine.toml"))
    return check_overlay(load_catalog(), overlay)


def silent(*rules: str) -> pytest.MarkDecorator:
    """Mark a test as one in which none of these rules speaks."""

    def mark(test: object) -> object:
        for rule in rules:
            test = pytest.mark.rule(rule, triggers=False)(test)
        return test

    return mark  # type: ignore[return-value]


@silent(*RULES)
@pytest.mark.parametrize("name", editions())
def test_the_editions_that_are_shipped_are_consistent(name: str) -> None:
    assert check_catalog(load_catalog(name)) == []


def cuda(compute: str, systems: str = '"x86_64-linux"', torch: str = "2.13", more: str = "") -> str:
    return f'\n[[row]]\ntorch = "{torch}"\nbackend = "cuda"\ncompute = [{compute}]\nsystems = [{systems}]\n{more}'


@pytest.mark.rule("KCI121", triggers=True)
def test_a_row_that_stands_twice() -> None:
    (found,) = check(cuda('"13.0"') + cuda('"13.0.0", "12.6"', more='tvm-ffi = "0.1"\n'))
    assert (found.rule, found.line) == ("KCI121", 11)
    assert found.message == "torch 2.13 with cuda 13.0.0 on x86_64-linux is already in line 5"


@pytest.mark.rule("KCI121", triggers=True)
def test_a_row_that_stands_twice_in_one_table_or_overlay() -> None:
    assert [found.rule for found in check(cuda('"13.0", "13.0"'))] == ["KCI121"]
    assert [found.rule for found in found_in_overlay('edition = "2026-08-20"' + cuda('"13.0"') * 2)] == ["KCI121"]


@pytest.mark.rule("KCI122", triggers=True)
@pytest.mark.parametrize(("compute", "known"), [("11.2", False), ("11.8", True), ("13.4.1", True), ("14.0", False)])
def test_a_toolkit_without_facts(compute: str, known: bool) -> None:
    if known:
        check(cuda('"99.0"'))  # the mark asks that the rule speaks
    found = [item for item in check(cuda(f'"{compute}"')) if item.rule == "KCI122"]
    assert bool(found) is not known


@pytest.mark.rule("KCI123", triggers=True)
def test_a_default_arch_that_the_toolkit_cannot_build(monkeypatch: pytest.MonkeyPatch) -> None:
    from kci.catalog.arch_tables import ArchTables
    from kci.config.values import Version

    tables = ArchTables(((Version(), ("7.0", "8.0", "9.0+PTX")),), ())
    monkeypatch.setattr(Catalog, "archs", tables)
    found = [item for item in check(cuda('"12.6"') + cuda('"13.0"')) if item.rule == "KCI123"]
    assert [(item.line, item.message) for item in found] == [
        (11, "CUDA 13.0 cannot build 7.0, which is built by default")
    ]


@pytest.mark.rule("KCI124", triggers=True)
def test_a_bundled_row_that_no_runner_can_build() -> None:
    (found,) = check(cuda('"12.8"', '"aarch64-windows", "x86_64-windows"'))
    assert (found.rule, found.message) == ("KCI124", "no runner is known for aarch64-windows")
    assert "[runners.any.aarch64-windows]" in found.hint


@silent("KCI124")
def test_a_row_that_is_not_bundled_needs_no_runner() -> None:
    assert check(cuda('"12.8"', '"aarch64-windows"', more="bundled = false\n")) == []


@pytest.mark.rule("KCI125", triggers=True)
def test_a_version_without_an_image() -> None:
    rocm = '\n[[row]]\ntorch = "2.13"\nbackend = "rocm"\ncompute = ["7.2.1", "7.3"]\nsystems = ["x86_64-linux"]\n'
    (found,) = check(rocm)
    assert (found.rule, found.message) == ("KCI125", "no build image is known for rocm 7.3")


@silent("KCI125")
def test_a_system_that_kci_does_not_compile_for_needs_no_image() -> None:
    assert check(cuda('"12.7"', '"x86_64-windows"')) == []
    assert "12.7" not in known_images().cuda


@pytest.mark.rule("KCI126", triggers=True)
def test_a_neighbor_that_does_not_exist() -> None:
    (found,) = check("row = []\n", 'neighbors = ["2026-03-25", "2025-01-01"]\n')
    assert (found.rule, found.line, found.column) == ("KCI126", 4, 28)


@pytest.mark.rule("KCI129", triggers=True)
def test_rows_that_share_a_name() -> None:
    xpu = '\n[[row]]\ntorch = "2.12"\nbackend = "xpu"\ncompute = ["2025.3.1", "2025.3.2"]\nsystems = ["x86_64-linux"]\n'
    (found,) = check(xpu)
    assert found.rule == "KCI129"
    assert "xpu 2025.3.2 on x86_64-linux has the same variant name as torch 2.12 with xpu 2025.3.1" in found.message


@pytest.mark.rule("KCI127", triggers=True)
def test_a_part_of_an_overlay_that_does_nothing() -> None:
    found = found_in_overlay("""\
        keep = ["torch >= 2.12", "torch > 3"]
        drop = ["cuda == 13.2", "cuda == 11.8"]
        [[change]]
        where = "rocm == 6.0"
        bundled = false
    """)
    assert [(item.rule, item.line, item.column) for item in found] == [
        ("KCI127", 1, 26),
        ("KCI127", 2, 25),
        ("KCI127", 4, 9),
    ]


@silent(*RULES)
def test_an_overlay_that_does_what_it_says() -> None:
    assert found_in_overlay('keep = ["torch >= 2.12"]\ndrop = ["cuda == 13.2"]') == []


def test_an_overlay_is_not_blamed_for_its_edition() -> None:
    faulty = interpret_edition(parse_document((HEAD + cuda('"11.0", "11.0"')).encode(), "base.toml"))
    assert check_catalog(faulty)
    fine = read_overlay(parse_document(b'drop = ["cuda > 11"]', "mine.toml"))
    assert [item.rule for item in check_overlay(faulty, fine)] == ["KCI127"]
    found = found_in_overlay('edition = "2026-08-20"' + cuda('"14.0"', torch="2.14"))
    assert {(item.rule, item.path, item.line) for item in found} == {
        ("KCI122", "mine.toml", 2),
        ("KCI125", "mine.toml", 2),
    }
