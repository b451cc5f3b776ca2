"""Which variants a kernel has, why not others, and how it is told (docs/format.md#selection)."""

from __future__ import annotations

from collections import Counter

import pytest
from msgspec.structs import replace

from conformance_cases import Against, Case, Expected, cases
from conftest import ROOT, kernel, noarch_kernel, torch_kernel
from kci.cli._output import as_markdown
from kci.cli.matrix import WIDTH, explanation_tables, explanation_text, places
from kci.config.reader import Kernel, parse_kernel, read_kernel
from kci.config.values import Backend, Tier, Version, text_of
from kci.matrix.catalog.loading import outside_range
from kci.matrix.catalog.rows import Catalog
from kci.matrix.selection import select
from kci.matrix.variants import parse_variant_name


def names(
    made: Kernel, catalog: Catalog, tier: Tier = Tier.RELEASE, system: str | None = None
) -> list[str]:
    variants = select(made, catalog, tier).variants
    return [variant.name for variant in variants if system in (None, variant.system)]


@pytest.mark.parametrize("case", [pytest.param(case, id=case.name) for case in cases()])
def test_every_conformance_case_agrees_with_the_reference(case: Case, catalog: Catalog) -> None:
    made = parse_kernel(case.raw)
    for tier, expected in ((Tier.RELEASE, case.release), (Tier.PR, case.pr)):
        found: Expected = {}
        for variant in select(made, catalog, tier).variants:
            of_system = found.setdefault(variant.system, {}).setdefault(variant.backend, {})
            against = Against(text_of(variant.torch) or None, text_of(variant.compute) or None)
            of_system[variant.name] = against
        assert found == expected, tier


@pytest.mark.parametrize("tier", list(Tier))
def test_every_candidate_is_kept_or_dropped_once_with_a_place(tier: Tier, catalog: Catalog) -> None:
    own = {id(row) for row in catalog.rows}
    beyond = [row for row in outside_range(catalog)[0] if id(row) not in own]
    rows = [*catalog.rows, *(beyond if tier in (Tier.COMPAT, Tier.ALL) else ())]
    for case in cases():
        found = select(parse_kernel(case.raw), catalog, tier, explain=True)
        gone = [item for item in found.dropped if item.system]
        decided = [(item.system, item.backend, item.torch, item.compute) for item in gone]
        for item in found.variants:
            place = (item.system, item.backend)
            decided.append((*place, text_of(item.torch), text_of(item.compute) or None))
            name = parse_variant_name(item.name)
            assert (name.kind, name.system or item.system, name.backend) == (item.kind, *place)
        assert Counter(decided) == Counter(
            (row.system, row.backend, row.torch.text, row.compute.text if row.compute else None)
            for row in rows
        ), case.name
        assert len(found.kept) == len(found.variants)
        assert all(item.path and item.line for item in (*found.dropped, *found.kept))
        unexplained = select(parse_kernel(case.raw), catalog, tier).variants
        assert unexplained == found.variants, "explaining changes nothing"


@pytest.mark.rule("KCI208", triggers=False)
@pytest.mark.parametrize(
    ("general", "torch", "gone", "rule", "line"),
    [
        pytest.param(*case, marks=pytest.mark.rule(case[3], triggers=True))
        for case in (
            ('[general.cuda]\nminver = "13.0"', "", "cu126", "KCI202", 'minver = "13.0"'),
            ('[general.cuda]\nmaxver = "13"', "", "cu132", "KCI203", 'maxver = "13"'),
            ("", 'minver = "2.13.0"', "torch212", "KCI204", 'minver = "2.13.0"'),
            ("", 'maxver = "2.12"', "torch213", "KCI205", 'maxver = "2.12"'),
        )
    ],
)
def test_bounds_compare_as_versions_and_name_their_line(
    catalog: Catalog, general: str, torch: str, gone: str, rule: str, line: str
) -> None:
    made = torch_kernel(["cuda"], general=general, torch=torch)
    found = select(made, catalog, explain=True)
    assert found.variants
    assert not [variant.name for variant in found.variants if gone in variant.name]
    dropped = {item.line for item in found.dropped if item.rule == rule}
    assert [made.document.text.split("\n")[number - 1] for number in dropped] == [line]


@pytest.mark.rule("KCI205", "KCI208", triggers=True)
def test_the_collapse_comes_before_the_bundle_filter(catalog: Catalog) -> None:
    """With torch capped at 2.11 the only cpu row is not bundled: nothing is released, nothing is in
    a pull request.
    """
    made = torch_kernel(["cpu"], torch='maxver = "2.11"\nstable-abi = "2.9"')
    assert names(made, catalog) == []
    assert names(made, catalog, Tier.PR) == []
    found = select(made, catalog, explain=True)
    assert {item.rule for item in found.dropped if item.backend == "cpu"} == {"KCI205", "KCI208"}


@pytest.mark.rule("KCI209", triggers=True)
def test_noarch_duplicates_keep_the_first_row(catalog: Catalog) -> None:
    made = noarch_kernel(["cuda"])
    found = select(made, catalog, explain=True)
    kept = [(item.name, str(item.torch), str(item.compute)) for item in found.variants]
    assert kept == [("torch-cuda", "2.12", "12.6")] * 2
    assert {item.rule for item in found.dropped if item.backend == "cuda"} == {"KCI209"}
    assert [str(item.torch) for item in select(made, catalog, Tier.PR).variants] == ["2.13"] * 2


@pytest.mark.rule("KCI208", "KCI212", triggers=True)
def test_tpu_is_noarch_and_never_bundled(catalog: Catalog) -> None:
    made = noarch_kernel(["tpu", "neuron"])
    assert names(made, catalog) == []
    assert names(made, catalog, Tier.ALL) == ["torch-tpu"]
    dropped = select(made, catalog, explain=True).dropped
    rules = {item.rule for item in dropped if item.backend in ("tpu", "neuron")}
    assert rules == {"KCI208", "KCI212"}


@pytest.mark.rule("KCI206", triggers=True)
def test_a_tvm_ffi_kernel_needs_rows_with_tvm_ffi(catalog: Catalog) -> None:
    parts = '[tvm-ffi]\nsrc = []\n[kernel.one]\nbackend = "cuda"\ndepends = []\nsrc = ["a.cu"]\n'
    made = noarch_kernel(["cpu", "cuda"], parts)
    found = select(made, catalog, explain=True)
    assert found.variants
    without = {
        (row.system, row.backend, row.torch.text, row.compute and row.compute.text)
        for row in catalog.rows
        if row.backend in ("cpu", "cuda") and row.tvm_ffi is None
    }
    dropped = [item for item in found.dropped if item.rule == "KCI206"]
    assert {(item.system, item.backend, item.torch, item.compute) for item in dropped} == without
    assert {made.document.text.split("\n")[item.line - 1] for item in dropped} == {"[tvm-ffi]"}


@pytest.mark.rule("KCI210", triggers=True)
def test_the_pr_tier_says_what_it_builds_instead(catalog: Catalog) -> None:
    found = select(torch_kernel(["cuda"]), catalog, Tier.PR, explain=True)
    dropped = [item for item in found.dropped if item.rule == "KCI210"]
    assert {(item.torch, item.compute) for item in dropped} == {
        (torch, compute) for torch in ("2.12", "2.13") for compute in ("12.6", "13.0", "13.2")
    } - {("2.13", "12.6")}
    assert all("the pr tier builds torch213-cxx11-cu126-" in item.reason for item in dropped)


@pytest.mark.rule(
    "KCI201", "KCI202", "KCI203", "KCI204", "KCI205", "KCI206", "KCI207", "KCI209", triggers=False
)
@pytest.mark.rule("KCI210", "KCI212", "KCI218", triggers=False)
def test_a_kernel_for_every_backend_loses_only_what_is_not_bundled(catalog: Catalog) -> None:
    compiled = ["cpu", "cuda", "metal", "rocm", "xpu"]  # a tpu component cannot be compiled
    parts = "".join(
        f'[kernel.{name}_part]\nbackend = "{name}"\ndepends = []\nsrc = ["a.cu"]\n'
        for name in compiled
    )
    found = select(torch_kernel([*compiled, "tpu"], components=parts), catalog, explain=True)
    assert {item.rule for item in found.dropped} == {"KCI208"}
    assert len(found.variants) == len([row for row in catalog.rows if row.bundled])


@pytest.mark.rule("KCI218", triggers=True)
def test_the_compat_tier_says_what_it_leaves_to_the_release(catalog: Catalog) -> None:
    made = torch_kernel(["cuda", "rocm"], torch='stable-abi = { rocm = "2.10" }')
    dropped = select(made, catalog, Tier.COMPAT, explain=True).dropped
    left = {(item.system, item.torch, item.compute) for item in dropped if item.rule == "KCI218"}
    supported = [row for row in catalog.rows if row.bundled and row.backend == "cuda"]
    assert left == {(row.system, row.torch.text, str(row.compute)) for row in supported}


def test_compat_is_outside_the_supported_range(catalog: Catalog) -> None:
    made = torch_kernel(["cuda", "rocm"])
    found = {tier: select(made, catalog, tier).variants for tier in Tier}
    assert {str(variant.torch) for variant in found[Tier.COMPAT]} == {"2.11", "2.14"}
    names = {tier: {(item.system, item.name) for item in kept} for tier, kept in found.items()}
    assert not names[Tier.RELEASE] & names[Tier.COMPAT]
    assert names[Tier.ALL] == names[Tier.RELEASE] | names[Tier.COMPAT]


def test_compat_loads_a_build_for_the_cpu_with_its_own_torch(catalog: Catalog) -> None:
    compat = select(torch_kernel(["cpu", "cuda"]), catalog, Tier.COMPAT).variants
    assert {variant.loads for variant in compat if variant.backend == "cuda"} == {()}
    for variant in compat:
        assert variant.loads == ((str(variant.torch),) if variant.backend == "cpu" else ())


def test_other_tiers_load_with_the_torch_of_the_row_a_range_with_its_ends(catalog: Catalog) -> None:
    full = select(torch_kernel(["cpu", "cuda", "metal"]), catalog).variants
    for item in full:
        assert item.loads == ((str(item.torch),) if item.backend != "metal" else ())
    both, stable = ["cpu", "cuda"], 'stable-abi = "2.11"'
    for made, cpu, cuda in (
        (torch_kernel(both, torch=stable), {("2.11", "2.13")}, {("2.12", "2.13")}),
        (torch_kernel(both, torch=f'{stable}\nminver = "2.13"'), {("2.13",)}, {("2.13",)}),
        (noarch_kernel(both), {("2.12", "2.13")}, {("2.12",)}),
    ):
        variants = select(made, catalog).variants
        linux = [item for item in variants if item.system == "x86_64-linux"]
        assert {item.loads for item in linux if item.backend == "cpu"} == cpu
        assert {item.loads for item in linux if item.backend == "cuda"} == cuda


@pytest.mark.rule("KCI202", triggers=True)
def test_a_bound_that_nobody_wrote_is_called_a_default(catalog: Catalog) -> None:
    row = replace(catalog.rows[3], backend=Backend.CUDA, compute=Version.parse("11.2"))
    old = replace(catalog, rows=(row,))
    (dropped,) = select(torch_kernel(["cuda"]), old, explain=True).dropped
    told = "CUDA 11.2 is older than general.cuda.minver (11.8 by default)"
    assert (dropped.rule, dropped.reason) == ("KCI202", told)


@pytest.mark.rule("KCI207", triggers=True)
@pytest.mark.parametrize("spelling", ['stable-abi = "2.11"', '[torch.stable-abi]\ncpu = "2.11"'])
def test_a_collapse_is_placed_at_the_line_of_the_version(catalog: Catalog, spelling: str) -> None:
    made = torch_kernel(["cpu"], torch=spelling)
    found = select(made, catalog, explain=True).dropped
    (line,) = {item.line for item in found if item.rule == "KCI207"}
    assert made.document.text.split("\n")[line - 1] == spelling.splitlines()[-1]


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


@pytest.mark.rule("KCI201", "KCI202", "KCI204", "KCI212", triggers=True)
def test_candidates_of_one_reason_are_told_together(catalog: Catalog) -> None:
    found = select(kernel(BOUNDED), catalog, explain=True)
    cuda, *others = explanation_tables(found)
    assert cuda.title.startswith("cuda: "), "what is built comes first"
    rows = {table.title: [(row[0], row[1], row[3]) for row in table.rows] for table in others}
    assert rows["rocm: 0 kept, 4 dropped"] == [("KCI201", "every row", "build.toml:7")]
    assert rows["tpu: 0 kept, 1 dropped"][0][1] == "the only row"
    assert rows["cann: 0 kept, 1 dropped"][0][:2] == ("KCI212", "no row")
    dropped = [(row[0], row[1], row[3]) for row in cuda.rows if row[0] != "kept"]
    assert dropped == [
        ("KCI202", "cuda 12.6; torch 2.12, 2.13; aarch64-linux, x86_64-linux", "build.toml:9"),
        ("KCI204", "cuda 13.0, 13.2; torch 2.12; aarch64-linux, x86_64-linux", "build.toml:11"),
    ]
    kept = len(cuda.rows) - len(dropped)
    assert cuda.title == f"cuda: {kept} kept, {12 - kept} dropped"


def test_places_name_each_file_once() -> None:
    assert places([("a", 3), ("a", 12), ("b", 1), ("a", 3), ("", 0)]) == "a:3, 12, b:1"
    assert places([("", 0)]) == ""


def kernels() -> list[Kernel]:
    examples = [read_kernel(path.parent) for path in sorted(ROOT.glob("examples/*/build.toml"))]
    made = [Kernel(f"kernels/{item.build.name}", item.build, item.document) for item in examples]
    many = torch_kernel(["cpu", "cuda", "metal", "rocm", "xpu"], torch='maxver = "2.12"')
    return [*made, kernel(BOUNDED), many]


@pytest.mark.parametrize("tier", list(Tier))
@pytest.mark.parametrize("made", kernels(), ids=lambda made: made.build.name)
def test_the_text_fits_and_tells_all_variants(made: Kernel, tier: Tier, catalog: Catalog) -> None:
    found = select(made, catalog, tier, explain=True)
    text, tables = explanation_text(found), explanation_tables(found)
    lines, markdown = text.replace(str(ROOT), "").splitlines(), as_markdown(tables)
    assert max(map(len, lines)) <= WIDTH
    rules = {item.rule for item in found.dropped}
    told = (*(variant.name for variant in found.variants), *rules)
    assert all(word in text and word in markdown for word in told)
    most = 12 + 2 * len(found.variants) + 4 * len(rules) + 3 * len(tables)
    assert len(lines) < most
