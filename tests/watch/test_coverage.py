"""Expected against published variants: a tree, and a repository on the Hub."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import huggingface_hub
import pytest

from cli.runner import ended, kci
from conftest import failure, torch_kernel, write_noarch
from kci.cli import compat
from kci.errors import MissingToolError
from kci.matrix.catalog.rows import Catalog
from kci.matrix.selection import select
from kci.matrix.variants import KernelMatrix
from kci.publish.hub import hub_client
from kci.publish.listing import TreeListing, list_hub_tree, list_tree
from kci.tree.manifest import FILE_NAME as MANIFEST_NAME
from kci.tree.manifest import Manifest, Origin, Present, encode
from kci.watch.coverage import Coverage, CoverageState, coverage
from publish.fake_hub import FakeHub
from publish.test_publish import REPO, hub, tree_files
from variants import make_variant, signature, variant_digest

__all__ = ["hub"]

OLD, NEW = "torch212-cxx11-cpu-x86_64-linux", "torch213-cxx11-cpu-x86_64-linux"
SURPLUS = "torch29-cxx11-cpu-x86_64-linux"


@pytest.fixture
def matrix(catalog: Catalog) -> KernelMatrix:
    """Two variants are expected: of torch 2.12 and 2.13 on one system."""
    whole = select(torch_kernel(["cpu"]), catalog)
    variants = tuple(variant for variant in whole.variants if variant.system == "x86_64-linux")
    return KernelMatrix("some-kernel", "kernels/some-kernel", 1, variants)


def tree_with(tree: Path, *names: str) -> Path:
    for name in names:
        make_variant(tree, name, name="some-kernel")
    return tree


def listed(tree: Path, *entries: tuple[str, str, str]) -> None:
    """A manifest of variants, by digest and fingerprint."""
    present = tuple(
        Present(name, digest, "cpu", Origin("a"), fingerprint=fingerprint)
        for name, digest, fingerprint in entries
    )
    manifest = Manifest("some-kernel", 1, None, present, (), complete=True)
    (tree / MANIFEST_NAME).write_bytes(encode(manifest))


def states(found: Coverage) -> dict[str, str]:
    return {item.variant: str(item.state) for item in found.variants}


def test_missing_present_and_surplus(tmp_path: Path, matrix: KernelMatrix) -> None:
    tree = tree_with(tmp_path / "tree", NEW, SURPLUS)
    (tree / "benchmarks").mkdir()
    found = coverage(matrix, list_tree(tree))
    # What needs work comes first.
    states_in_order = [(OLD, "missing"), (NEW, "present"), (SURPLUS, "surplus")]
    assert [*states(found).items()] == states_in_order
    assert found.has_gaps
    assert not coverage(matrix, list_tree(tree_with(tree, OLD))).has_gaps, "surplus is no gap"


def says(name: str, text: str) -> Callable[[Path], object]:
    return lambda variant: (variant / name).write_text(text)


def another(name: str, kernel: str = "some-kernel") -> Callable[[Path], object]:
    def spoil(variant: Path) -> None:
        shutil.rmtree(variant)
        make_variant(variant.parent, name, name=kernel).rename(variant)

    return spoil


def no_digest(variant: Path) -> None:
    data = json.loads((variant / "metadata.json").read_text())
    del data["digest"]
    (variant / "metadata.json").write_text(json.dumps(data))


SPOILS: dict[str, Callable[[Path], object]] = {
    "nothing in it": lambda variant: [file.unlink() for file in variant.iterdir()],
    "broken metadata": says("metadata.json", "{"),
    "changed after hashing": says("__init__.py", "changed"),
    "a link out of the tree": lambda variant: variant.symlink_to(
        variant.rename(variant.parent.parent / "elsewhere")
    ),
    "another kernel": another(NEW, "other-kernel"),
    "another variant": another(SURPLUS),
    "no digest": no_digest,
    "a signature of other metadata": says("metadata.json.sigstore", signature(b"other")),
    "no signature": says("metadata.json.sigstore", "\0"),
}


@pytest.mark.parametrize("spoil", SPOILS)
def test_what_no_loader_should_use_is_corrupt_and_says_why(
    tmp_path: Path, matrix: KernelMatrix, spoil: str
) -> None:
    tree = tree_with(tmp_path / "tree", OLD, NEW)
    SPOILS[spoil](tree / NEW)
    found = coverage(matrix, list_tree(tree))
    assert states(found) == {OLD: "present", NEW: "corrupt"}
    reason = found.variants[0].reason
    assert reason
    assert str(tmp_path) not in reason


def test_a_variant_of_another_version_or_other_sources_is_stale(
    tmp_path: Path, matrix: KernelMatrix
) -> None:
    tree = tree_with(tmp_path / "tree", OLD)
    make_variant(tree, NEW, name="some-kernel", version=7)
    listed(tree, *((name, "x", f"of {name}") for name in (OLD, NEW)))
    assert states(coverage(matrix, list_tree(tree))) == {OLD: "present", NEW: "stale"}
    found = coverage(matrix, list_tree(tree), {OLD})
    assert states(found) == {OLD: "stale", NEW: "stale"}
    assert "version 7, build.toml has 1" in found.variants[1].reason


# --- the Hub --------------------------------------------------------------------------------------


def test_a_repository_is_compared_by_digest_without_downloading_libraries(
    hub: FakeHub, tmp_path: Path, matrix: KernelMatrix
) -> None:
    tree = tree_with(tmp_path / "tree", NEW, SURPLUS)
    metadata = tree / NEW / "metadata.json"
    (tree / NEW / "metadata.json.sigstore").write_text(signature(metadata.read_bytes()))
    hub[REPO].add("v1", tree_files(tree))
    found = coverage(matrix, list_hub_tree(REPO, "v1"))
    assert states(found) == {OLD: "missing", NEW: "present", SURPLUS: "surplus"}
    assert found.source == f"{REPO}@v1"
    assert hub.asked("/resolve/")
    assert not hub.asked(r"/resolve/.*\.so")
    hub[REPO].add("v1", {f"build/{NEW}/__init__.py": b"changed"})
    assert states(coverage(matrix, list_hub_tree(REPO, "v1")))[NEW] == "corrupt"


@pytest.mark.parametrize(
    ("said", "named", "asked"),
    [
        ("", "acme/k", "v1"),
        ("", "acme/k@abc", "abc"),
        ('\nbranch = "next"', "-", "next"),
        ("", "-", "v1"),
    ],
)
def test_where_it_looks_on_the_hub(
    said: str, named: str, asked: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kernel = write_noarch(tmp_path, general=f'[general.hub]\nrepo-id = "acme/k"{said}\n')
    looked: list[tuple[str, str]] = []

    def look(*where: str) -> TreeListing:
        looked.append((where[0], where[1]))
        return list_tree(tmp_path)

    monkeypatch.setattr(compat, "list_hub_tree", look)
    done = kci("compat", "coverage", kernel, "--hub", named)
    assert looked == [("acme/k", asked)], done.stderr


# --- the command ----------------------------------------------------------------------------------


def test_the_command_fails_on_a_gap(tmp_path: Path) -> None:
    tree_with(write_noarch(tmp_path) / "build", "torch-cpu")
    said = ended(kci("compat", "coverage", tmp_path), 0)
    assert "1 of 1 expected variants are there" in said
    (tmp_path / "build" / "torch-cpu" / "_ops.py").write_text("changed")
    answer = json.loads(ended(kci("compat", "coverage", tmp_path, "--format", "json"), 1))
    assert answer["counts"]["corrupt"] == 1
    first = answer["coverage"]["variants"][0]
    assert (first["state"], "_ops.py changed" in first["reason"]) == (CoverageState.CORRUPT, True)


def test_what_was_not_asked_about_is_no_surplus(tmp_path: Path) -> None:
    """It once was, with a command that removed the variants of the other backends."""
    file = write_noarch(tmp_path) / "build.toml"
    file.write_text(file.read_text().replace('["cpu"]', '["cpu", "cuda"]'))
    tree_with(tmp_path / "build", "torch-cpu", "torch-cuda", SURPLUS)
    for tier in ("release", "pr", "compat"):
        shown = kci("compat", "coverage", f"{tmp_path}[cpu]", "--tier", tier, "--format", "json")
        variants = json.loads(shown.stdout)["coverage"]["variants"]
        found = {item["variant"]: item["state"] for item in variants}
        assert found == {"torch-cpu": "present", SURPLUS: "surplus"}, tier


def test_the_command_compares_fingerprints_where_the_manifest_has_them(tmp_path: Path) -> None:
    tree = tree_with(write_noarch(tmp_path) / "build", "torch-cpu")
    plan = json.loads(kci("plan", tmp_path, "--format", "json", "--fingerprints").stdout)
    (today,) = plan["kernels"][0]["fingerprints"].values()
    for fingerprint, code in ((today, 0), ("0" * len(today), 1)):
        listed(tree, ("torch-cpu", variant_digest(tree / "torch-cpu"), fingerprint))
        done = kci("compat", "coverage", tmp_path)
        assert (done.code, "other sources" in done.stdout) == (code, bool(code))


@pytest.mark.parametrize(
    ("version", "good"), [("2.2.0", False), ("1.33.0", False), ("2.3.0", True), ("10.0.0rc1", True)]
)
def test_a_client_that_cannot_write_to_kernels_is_too_old(
    version: str, good: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(huggingface_hub, "__version__", version)
    if good:
        assert hub_client(token=False) is not None
        return
    caught = failure(MissingToolError, r"kci needs 2\.3 or newer", hub_client, token=False)
    assert "kci[hf]" in caught.hint
