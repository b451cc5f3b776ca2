"""The next edition of the catalog, proposed from saved listings of wheel indexes and the reference's table."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from cli.runner import kci
from conftest import ROOT
from kci.catalog.consistency import check_catalog
from kci.catalog.listings import read_indexes
from kci.catalog.loading import interpret_edition, load_catalog
from kci.catalog.rows import Catalog
from kci.config.document import parse_document
from kci.errors import FindingsError
from kci.matrix.names import Kind, variant_name
from kci.matrix.next_edition import propose, read_published

LINUX = ("manylinux_2_28_x86_64", "manylinux_2_28_aarch64")


def page(*wheels: str) -> str:
    """A listing as pip reads it; the plus sign is escaped in links."""
    links = "".join(f'<a href="/whl/{wheel.replace("+", "%2B")}#sha256=0123">{wheel}</a><br/>\n' for wheel in wheels)
    return f"<!DOCTYPE html><html><body><h1>Links for torch</h1>\n{links}</body></html>\n"


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
FROM = ("--catalog", "2026-09-17")
NIGHTLY = wheels("2.16.0.dev20261120", "cpu", "cu136", "rocm10.0")


@pytest.fixture
def current() -> Catalog:
    """The edition that the proposals follow."""
    return load_catalog("2026-09-17")


def listing(tmp_path: Path, names: list[str], file: str = "index.html") -> Path:
    (tmp_path / file).write_text(page(*names))
    return tmp_path / file


def proposed(tmp_path: Path, current: Catalog, names: list[str], table: Path | None = None) -> Catalog:
    rows = read_published(table, current.rows) if table else []
    made = propose(current, read_indexes([listing(tmp_path, names)]), rows)
    text = made.toml(name="new", as_of="2026-11-21", source="x", neighbors=["2026-09-17"])
    return interpret_edition(parse_document(text.encode(), "new.toml"))


def bundled(catalog: Catalog) -> set[tuple[str, str, str | None, str]]:
    return {
        (row.torch.minor_text, str(row.backend), row.compute.minor_text if row.compute else None, row.system)
        for row in catalog.rows
        if row.bundled
    }


def test_what_exists_in_september_leads_to_the_table_of_september(tmp_path: Path, current: Catalog) -> None:
    made = proposed(tmp_path, current, [*RELEASES, *wheels("2.15.0.dev20260915", "cpu", "cu134")])
    assert {row.key for row in made.rows} == {row.key for row in current.rows}
    assert {row.key for row in made.rows if row.bundled} == {row.key for row in current.rows if row.bundled}
    assert {row.key: row.tvm_ffi for row in made.rows} == {row.key: row.tvm_ffi for row in current.rows}


def test_a_new_release_moves_the_range(tmp_path: Path, current: Catalog) -> None:
    made = proposed(tmp_path, current, NEW)
    assert {torch for torch, *_ in bundled(made)} == {"2.14", "2.15"}
    assert ("2.15", "cuda", "13.4", "aarch64-linux") in bundled(made)
    assert ("2.15", "metal", None, "aarch64-darwin") in bundled(made)
    assert not [row for row in made.rows if row.system.endswith("windows")], "nobody builds for Windows today"
    assert check_catalog(made) == []


def test_what_a_wheel_does_not_say_is_left_to_a_person(tmp_path: Path, current: Catalog) -> None:
    made = propose(current, read_indexes([listing(tmp_path, NEW)]))
    assert any("XPU with torch 2.15" in text for text in made.unknown)
    assert not [row for row in made.rows if row.backend == "xpu" and row.torch.minor_text == "2.15"]
    assert "# XPU with torch 2.15" in made.toml(name="new", as_of="2026-11-21", source="x")


def test_a_tvm_ffi_outlives_the_row_that_had_it_or_its_end_is_told(tmp_path: Path) -> None:
    """Its variants are named after the toolkit and not after torch: whoever loads them has not changed anything."""
    made = propose(load_catalog("2026-08-20"), read_indexes([listing(tmp_path, RELEASES)]))
    having = {(str(row.backend), str(row.compute), row.system, row.torch.text) for row in made.rows if row.tvm_ffi}
    assert having == {
        *(("cpu", "None", system, "2.14") for system in ("aarch64-darwin", "aarch64-linux", "x86_64-linux")),
        *(("cuda", compute, f"{cpu}-linux", "2.14") for compute in ("12.6", "13.0") for cpu in ("aarch64", "x86_64")),
        *(("cuda", "13.2", f"{cpu}-linux", "2.13") for cpu in ("aarch64", "x86_64")),
        ("xpu", "2026.0.0", "x86_64-linux", "2.13"),
    }
    told = [line for line in made.unknown if line.startswith("tvm-ffi")]
    assert told[4].startswith(
        "tvm-ffi 0.1 of cuda 12.6 on x86_64-linux: its row, with torch 2.12, is gone; that with torch 2.14 has it here."
    )
    assert told[-1] == (
        "tvm-ffi 0.1 of xpu 2025.3.2 on x86_64-linux: its row, with torch 2.12, is gone; that with torch 2.13 2026.0.0 "
        "has it here. Does the reference build it there?"
    )
    assert not [line for line in told if "its variants end" in line]
    assert all(f"# {line}" in made.toml(name="new", as_of="2026-11-21", source="x") for line in told)


def test_a_nightly_is_outside_of_the_range_and_a_release_candidate_no_release(tmp_path: Path, current: Catalog) -> None:
    made = proposed(tmp_path, current, [*RELEASES, *NIGHTLY, *wheels("2.15.0rc1", "cpu", "cu134")])
    assert {torch for torch, *_ in bundled(made)} == {"2.13", "2.14"}
    outside = {(row.torch.minor_text, str(row.backend)) for row in made.rows if not row.bundled}
    assert outside >= {("2.15", "cuda"), ("2.16", "cuda"), ("2.16", "rocm")}


def test_the_table_says_which_toolkits_users_get(tmp_path: Path, current: Catalog) -> None:
    names = [variant_name(Kind.FULL, "cuda", "x86_64-linux", torch, (13, 0)) for torch in ((2, 14), (2, 15))]
    table = tmp_path / "build-variants.json"
    table.write_text(json.dumps({"x86_64-linux": {"cuda": names}}))
    made = proposed(tmp_path, current, NEW, table)
    assert bundled(made) == {(torch, "cuda", "13.0", "x86_64-linux") for torch in ("2.14", "2.15")}


def test_a_release_that_the_table_does_not_have_yet_is_outside_of_the_range(tmp_path: Path, current: Catalog) -> None:
    names = [variant_name(Kind.FULL, "cuda", "x86_64-linux", torch, (13, 0)) for torch in ((2, 13), (2, 14))]
    table = tmp_path / "build-variants.json"
    table.write_text(json.dumps({"x86_64-linux": {"cuda": names}}))
    made = proposed(tmp_path, current, NEW, table)
    assert {torch for torch, *_ in bundled(made)} == {"2.13", "2.14"}
    assert ("2.15", False) in {(row.torch.minor_text, row.bundled) for row in made.rows}


@pytest.mark.parametrize(
    "text", ["", "<html>", page("numpy-2.0.0-cp313-cp313-manylinux_2_28_x86_64.whl"), "torch-" * 9]
)
def test_a_listing_without_wheels_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "index.html").write_text(text)
    with pytest.raises(FindingsError, match="lists no wheel of torch"):
        read_indexes([tmp_path / "index.html"])


def test_only_nightlies_are_no_ground_for_an_edition(tmp_path: Path, current: Catalog) -> None:
    with pytest.raises(FindingsError, match="no release of torch"):
        propose(current, read_indexes([listing(tmp_path, NIGHTLY)]))


# --- the commands -----------------------------------------------------------------------------------------------------


def test_next_says_what_comes_and_goes_and_what_it_takes(tmp_path: Path) -> None:
    relu = ROOT / "examples" / "relu"
    page_of_index = listing(tmp_path, NEW)
    command = ["catalog", "next", relu, *FROM, "--index", page_of_index, "--as-of", "2026-11-21"]
    done = kci(*command, "--into", tmp_path / "next.toml")
    assert done.code == 0, done.stderr
    assert "+ torch215-cxx11-cu134-x86_64-linux" in done.stdout
    assert "- torch213-cxx11-cu126-x86_64-linux" in done.stdout
    assert " runner minutes; up to " in done.stdout
    assert "USD" in done.stdout
    assert kci("catalog", "check", tmp_path / "next.toml").code == 0
    names = kci("matrix", relu, "--catalog", tmp_path / "next.toml", "--format", "names").stdout.split()
    come = {line[4:] for line in done.stdout.splitlines() if line.startswith("  + ")}
    assert come <= set(names)
    printed = kci(*command)
    assert printed.stdout == (tmp_path / "next.toml").read_text()
    assert " runner minutes; up to " in printed.stderr


def test_next_says_which_kernels_it_could_not_estimate(tmp_path: Path) -> None:
    for name in ("relu", "rms-norm"):
        shutil.copytree(ROOT / "examples" / name, tmp_path / name, ignore=shutil.ignore_patterns("build"))
    build = tmp_path / "relu" / "build.toml"
    text = build.read_text()
    build.write_text(text.replace("[kernel.relu_cuda]\n", '[kernel.relu_cuda]\ncuda-capabilities = ["6.0"]\n'))
    done = kci("catalog", "next", tmp_path, *FROM, "--index", listing(tmp_path, NEW), "--as-of", "2026-11-21",
               "--into", tmp_path / "next.toml")  # fmt: skip
    assert done.code == 1
    assert "not estimated: relu: no entry of `cuda-capabilities` is left" in done.stdout
    assert " runner minutes; up to " in done.stdout
    assert (tmp_path / "next.toml").exists()


def test_next_without_a_change_says_so(tmp_path: Path) -> None:
    page_of_index = listing(tmp_path, RELEASES)
    done = kci("catalog", "next", ROOT / "examples" / "relu", *FROM, "--index", page_of_index, "--as-of", "2026-11-21",
               "--into", tmp_path / "next.toml")  # fmt: skip
    assert "no variant changes" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["--today", "2026-10-01", *FROM], 0, "2026-09-17: 14 days old"),
        (["--today", "2026-11-21", *FROM], 1, "65 days old; a catalog is outdated after 56"),
        (["--today", "2026-11-21", "--days", "90", *FROM], 0, "outdated after 90"),
        (["--today", "2026-09-18", "--catalog", "2026-08-20"], 1, "newer: 2026-09-02, 2026-09-17"),
        (["--today", "2026-09-01", "--catalog", "2026-08-20"], 0, "2026-08-20: 12 days old"),
        (["--today", "soon"], 2, ""),
    ],
)
def test_outdated_says_how_old_the_catalog_is(tmp_path: Path, arguments: list[str], code: int, said: str) -> None:
    done = kci("catalog", "outdated", tmp_path, *arguments)
    assert (done.code, said in done.stdout) == (code, True)


def test_outdated_looks_at_the_catalog_of_kci_toml(tmp_path: Path) -> None:
    (tmp_path / ".git").mkdir()
    (tmp_path / "kci.toml").write_text('catalog = "2026-08-20"\n')
    answer = json.loads(kci("catalog", "outdated", tmp_path, "--today", "2026-09-03", "--format", "json").stdout)
    assert (answer["outdated"], answer["freshness"]["name"], answer["freshness"]["days"]) == (True, "2026-08-20", 14)


def test_an_estimate_has_every_kernel_however_many_there_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("relu", "rms-norm", "swiglu"):
        shutil.copytree(ROOT / "examples" / name, tmp_path / name, ignore=shutil.ignore_patterns("build"))

    def said() -> list[str]:
        done = kci("catalog", "next", tmp_path, *FROM, "--index", listing(tmp_path, NEW), "--as-of", "2026-11-21",
                   "--into", tmp_path / "next.toml")  # fmt: skip
        return [line for line in done.stdout.splitlines() if line.startswith("to build")]

    whole = said()
    monkeypatch.setattr("kci.moves.next_catalog._AT_ONCE", 1)
    assert said() == whole
    assert len(whole) == 1
