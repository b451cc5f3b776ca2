"""How decisions are put together for people: by backend, by reason, within 120 columns."""

from __future__ import annotations

import pytest

from conftest import ROOT, kernel, torch_kernel
from kci.cli.matrix import WIDTH, by_backend, explanation_markdown, explanation_text, places
from kci.config.reader import Kernel, read_kernel
from kci.config.values import Tier
from kci.matrix.catalog.rows import Catalog
from kci.matrix.selection import select

BOUNDED = """
    [general]
    name = "some-kernel"
    version = 1
    edition = 5
    license = "MIT"
    backends = ["cuda", "cann"]
    [general.cuda]
    minver = "13.0"
    [torch]
    minver = "2.13"
    [torch.stable-abi]
    cuda = "2.11"
    [kernel.one]
    backend = "cuda"
    depends = []
    src = ["a.cu"]
"""


@pytest.mark.rule("KCI201", "KCI212", triggers=True)
def test_a_rule_that_drops_a_whole_backend_is_one_entry(catalog: Catalog) -> None:
    found = select(kernel(BOUNDED), catalog, explain=True)
    reasons = {item.backend: item for item in by_backend(found)}
    assert next(iter(reasons)) == "cuda", "what is built comes first"
    (rocm,) = reasons["rocm"].dropped
    assert (rocm.rule, rocm.what, rocm.where) == ("KCI201", "every row", "build.toml:7")
    assert len(rocm.candidates) == 4, "and each candidate is still there"
    assert reasons["tpu"].dropped[0].what == "the only row"
    assert (reasons["cann"].dropped[0].what, reasons["cann"].dropped[0].rule) == (
        "no row",
        "KCI212",
    )
    assert reasons["rocm"].title == "rocm: 0 kept, 4 dropped"


@pytest.mark.rule("KCI202", "KCI204", triggers=True)
def test_candidates_of_one_reason_are_told_together(catalog: Catalog) -> None:
    found = select(kernel(BOUNDED), catalog, explain=True)
    (cuda,) = [item for item in by_backend(found) if item.backend == "cuda"]
    assert [(group.rule, group.what, group.where) for group in cuda.dropped] == [
        ("KCI202", "cuda 12.6; torch 2.12, 2.13; aarch64-linux, x86_64-linux", "build.toml:9"),
        ("KCI204", "cuda 13.0, 13.2; torch 2.12; aarch64-linux, x86_64-linux", "build.toml:11"),
    ]
    assert sum(len(group.candidates) for group in cuda.dropped) + len(cuda.kept) == 12


def test_places_name_each_file_once() -> None:
    assert places([("a", 3), ("a", 12), ("b", 1), ("a", 3), ("", 0)]) == "a:3, 12, b:1"
    assert places([("", 0)]) == ""


def kernels() -> list[Kernel]:
    made = [
        read_kernel(path)
        for path in sorted((ROOT / "examples").iterdir())
        if (path / "build.toml").is_file()
    ]
    made = [Kernel(f"kernels/{item.build.name}", item.build, item.document) for item in made]
    return [
        *made,
        kernel(BOUNDED),
        torch_kernel(["cpu", "cuda", "metal", "rocm", "xpu"], torch='maxver = "2.12"'),
    ]


@pytest.mark.parametrize("tier", list(Tier))
@pytest.mark.parametrize("made", kernels(), ids=lambda made: made.build.name)
def test_the_text_fits_and_tells_every_kept_variant(
    made: Kernel, tier: Tier, catalog: Catalog
) -> None:
    found = select(made, catalog, tier, explain=True)
    for reasons in by_backend(
        found
    ):  # absolute paths of a test's own files would be no fair measure
        assert all(len(kept.path) < 100 for kept in reasons.kept)
    text = explanation_text(found)
    own = str(ROOT)
    assert max(len(line.replace(own, "")) for line in text.splitlines()) <= WIDTH
    markdown = explanation_markdown(found)
    for variant in found.variants:
        assert variant.name in text
        assert variant.name in markdown
    rules = {item.rule for item in found.dropped}
    assert all(rule in text and rule in markdown for rule in rules)
    assert len(text.splitlines()) < 12 + 2 * len(found.variants) + 4 * len(rules) + 3 * len(
        by_backend(found)
    )
