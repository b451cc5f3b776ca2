"""What kernels need when the range of toolchains moves: found, and edited without touching the rest."""

from __future__ import annotations

from pathlib import Path

import pytest

from buildkit import write_tree
from cli.runner import kci
from conftest import add_package
from kci.catalog.loading import interpret_edition
from kci.catalog.rows import Catalog
from kci.config.document import parse_document
from kci.config.reader import parse_kernel
from kci.matrix.migrations import MIGRATIONS, Migration, plan_migrations, whole_change
from kci.workspace.migrating import only_stable

HEAD = '[general]\nname = "some-kernel"\nversion = 1\n'
TAIL = 'license = "MIT"\nbackends = ["cuda"]\n'
TORCH = '\n[torch]\nsrc = ["a.cpp"]\n'
COMPONENT = '\n[kernel.part]\nbackend = "cuda"\ndepends = ["torch"]\nsrc = ["a.cu"]\n'


def edition(torches: str, computes: str, *, name: str = "made", extra: str = "") -> str:
    rows = "".join(
        f'[[row]]\ntorch = "{torch}"\nbackend = "cuda"\ncompute = [{computes}]\nsystems = ["x86_64-linux"]\n'
        for torch in torches.split()
    )
    return f'name = "{name}"\nas-of = 2026-11-21\nsource = "test"\n{rows}{extra}'


def catalog(torches: str, computes: str, **more: str) -> Catalog:
    return interpret_edition(parse_document(edition(torches, computes, **more).encode(), "made.toml"))


OLD = catalog("2.13 2.14", '"12.6", "13.0"')
NEW = catalog("2.14 2.15", '"13.0", "13.4"')


def build(general: str = "", torch: str = "", component: str = "", number: str = "edition = 5\n") -> str:
    return HEAD + number + TAIL + general + TORCH + torch + COMPONENT + component


def needed(text: str, after: Catalog = NEW, before: Catalog = OLD, *, stable_sources: bool = False) -> list[Migration]:
    return plan_migrations(text.encode(), before, after, stable_sources=stable_sources)


def only(text: str, after: Catalog = NEW, *, stable_sources: bool = False) -> tuple[Migration, str]:
    """The one migration, and the file after it."""
    (found,) = needed(text, after, stable_sources=stable_sources)
    return found, found.change.after.decode() if found.change else ""


def test_nothing_is_needed_where_nothing_is_left_behind() -> None:
    assert needed(build(general='\n[general.cuda]\nminver = "13.2"\n', torch='minver = "2.15"\n')) == []


def test_a_file_of_an_older_edition_is_updated_first() -> None:
    found, after = only(build(number=""))
    assert (found.id, found.waits) == ("edition", False)
    assert "edition = 5" in after


@pytest.mark.parametrize(
    ("text", "rest", "migration"),
    [
        (build(torch='minver = "2.14" # why\n'), build(), "torch-minver"),
        (build(general='\n[general.cuda]\nminver = "12.8"\n'), build(), "cuda-minver"),
        (
            build(general='\n[general.cuda]\nminver = "12.8" # why\nmaxver = "13.4"\n'),
            build(general='\n[general.cuda]\nmaxver = "13.4"\n'),
            "cuda-minver",
        ),
        (build(component='cuda-minver = "12.9"\n'), build(), "cuda-minver"),
        (
            build(component='cuda-capabilities = [ "8.0", "10.1a" ] # two\n'),
            build(component='cuda-capabilities = [ "8.0", "11.0a" ] # two\n'),
            "arch-renamed",
        ),
        (
            build(component='cuda-capabilities = ["10.1", "11.0"]\n'),
            build(component='cuda-capabilities = ["11.0"]\n'),
            "arch-renamed",
        ),
        (
            build(component='cuda-capabilities = [\n  "7.0",\n  "8.0", # A100\n]\n'),
            build(component='cuda-capabilities = [\n  "8.0", # A100\n]\n'),
            "arch-dropped",
        ),
    ],
)
def test_an_edit_changes_that_and_nothing_else(text: str, rest: str, migration: str) -> None:
    found, after = only(text)
    assert found.id == migration
    assert found.waits is (migration != "arch-renamed"), "10.1 is in neither edition"
    assert not found.todo
    assert after == rest
    assert needed(after) == []


def test_a_bound_stays_while_the_compat_tier_still_has_something_below_it() -> None:
    older = (
        '[[row]]\ntorch = "2.13"\nbackend = "cuda"\ncompute = ["12.6"]\nsystems = ["x86_64-linux"]\nbundled = false\n'
    )
    text = build(general='\n[general.cuda]\nminver = "12.8"\n', torch='minver = "2.14"\n')
    assert needed(text, catalog("2.14 2.15", '"13.0"', extra=older)) == []
    assert {item.id for item in needed(text)} == {"cuda-minver", "torch-minver"}


def test_a_renamed_capability_is_listed_twice_where_both_names_are_built() -> None:
    after = catalog("2.14 2.15", '"12.9", "13.0"')
    found, text = only(build(component='cuda-capabilities = ["10.1"]\n'), after)
    assert found.id == "arch-renamed"
    assert 'cuda-capabilities = ["10.1", "11.0"]' in text
    assert needed(text, after) == []


@pytest.mark.parametrize(
    ("text", "migration", "said"),
    [
        (build(torch='maxver = "2.14"\n'), "torch-maxver", "users of it get no variant"),
        (build(torch='maxver = "2.12"\n'), "torch-maxver", "no variant is left"),
        (build(general='\n[general.cuda]\nmaxver = "12.9"\n'), "cuda-maxver", "no variant"),
        (build(component='cuda-capabilities = ["7.0"]\n'), "arch-dropped", "cannot build it"),
    ],
)
def test_what_takes_a_person_is_said_and_not_done(text: str, migration: str, said: str) -> None:
    (found,) = needed(text)
    assert (found.id, found.change) == (migration, None)
    assert said in found.reason
    assert found.todo
    assert whole_change([found]) is None


def test_the_stable_abi_is_proposed_where_the_sources_need_no_more() -> None:
    text = build()
    assert needed(text) == []
    found, after = only(text, stable_sources=True)
    assert found.id == "stable-abi"
    stable = parse_kernel(after.encode()).build.stable_abi("cuda")
    assert stable is not None
    assert stable.text == "2.14"
    assert needed(after, stable_sources=True) == []


@pytest.mark.parametrize(
    ("included", "stable"),
    [
        (["torch/csrc/stable/library.h", "cuda_runtime.h"], True),
        (["torch/csrc/stable/tensor.h", "torch/headeronly/macros/Macros.h"], True),
        (["torch/csrc/stable/library.h", "ATen/ATen.h"], False),
        (["torch/csrc/stable/library.h", None], False),
        (["cuda_runtime.h"], False),
        ([], False),
    ],
)
def test_which_sources_need_only_the_stable_abi(included: list[str | None], stable: bool) -> None:
    assert only_stable(included) is stable


def test_what_was_due_before_the_move_does_not_wait_for_it() -> None:
    (overdue,) = needed(build(torch='minver = "2.9"\n'))
    (new,) = needed(build(torch='minver = "2.14"\n'))
    assert (overdue.waits, new.waits) == (False, True)
    assert needed(build(torch='minver = "2.9"\n'), OLD, OLD) != []


def test_several_migrations_are_one_change() -> None:
    text = build(torch='minver = "2.9"\n', component='cuda-capabilities = ["7.0", "8.0", "10.1"]\n', number="")
    found = needed(text)
    assert [item.id for item in found] == ["edition", "torch-minver", "arch-dropped", "arch-renamed"]
    assert {item.id for item in found} <= MIGRATIONS.keys()
    whole = whole_change(found)
    assert whole is not None
    assert whole.before == text.encode()
    assert needed(whole.after.decode()) == []
    assert len(whole.changes) == 4


@pytest.mark.parametrize("end", ["\n", "\r\n"])
@pytest.mark.parametrize("start", ["", "\ufeff"])
def test_line_ends_and_a_byte_order_mark_stay(start: str, end: str) -> None:
    text = (start + build(torch='minver = "2.9"\n')).replace("\n", end)
    (found,) = needed(text)
    assert found.change is not None
    assert found.change.after.decode() == (start + build()).replace("\n", end)


# --- the command ------------------------------------------------------------------------------------------------------


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A kernel whose sources need only the stable ABI, and the next edition."""
    files = {
        "build.toml": build(torch='minver = "2.9"\nmaxver = "2.14"\n'),
        "a.cpp": "#include <torch/csrc/stable/library.h>\n",
        "a.cu": "#include <cuda_runtime.h>\n",
        "kci.toml": 'catalog = "old.toml"\n',
        "old.toml": edition("2.13 2.14", '"12.6", "13.0"'),
        "next.toml": edition("2.14 2.15", '"13.0", "13.4"', name="next"),
    }
    return write_tree(tmp_path / "place", files)


def test_update_migrates_to_a_catalog(place: Path) -> None:
    before = (place / "build.toml").read_text()
    shown = kci("update", place, "--catalog", place / "next.toml", "--diff")
    assert shown.code == 0, shown.stderr
    assert '-minver = "2.9"\n' in shown.stdout
    assert "+[torch.stable-abi]\n" in shown.stdout
    assert "torch-maxver: by hand: support torch 2.15" in shown.stderr
    assert kci("update", place, "--catalog", place / "next.toml", "--check").code == 1
    assert (place / "build.toml").read_text() == before
    done = kci("update", place, "--catalog", place / "next.toml")
    assert done.code == 0, done.stderr
    assert "torch-minver: updated: remove `torch.minver = 2.9`" in done.stdout
    assert kci("check", add_package(place)).code == 0
    again = kci("update", place, "--catalog", place / "next.toml", "--diff")
    assert again.stdout == ""
    assert "by hand" in again.stderr


def test_a_source_that_cannot_be_read_may_include_anything(place: Path) -> None:
    (place / "a.cu").unlink()
    assert "stable-abi" not in kci("update", place, "--catalog", place / "next.toml", "--diff").stderr


def test_where_nothing_is_to_be_migrated_that_is_said(place: Path) -> None:
    assert "updated: " in kci("update", place, "--catalog", place / "old.toml").stdout
    done = kci("update", place, "--catalog", place / "old.toml")
    assert (done.code, done.stdout) == (0, "nothing to migrate\n"), done.stderr
    assert kci("update", place, "--catalog", place / "old.toml", "--diff").stdout == ""


def test_an_edition_of_the_format_and_one_of_the_catalog_are_two_steps(place: Path) -> None:
    assert kci("update", place, "--catalog", place / "next.toml", "--to", "5").code == 2
