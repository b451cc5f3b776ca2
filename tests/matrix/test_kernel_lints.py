"""Lints that know the toolkits and torch versions of a kernel's own matrix."""

from __future__ import annotations

from pathlib import Path

import pytest

from conftest import kernel, noarch_kernel, torch_kernel
from kci.config.document import parse_document
from kci.config.reader import parse_kernel
from kci.diagnostics import Diagnostic, Severity
from kci.matrix.catalog.loading import for_kernel, load_catalog, read_overlay
from kci.matrix.catalog.rows import Catalog
from kci.matrix.lints import lint_matrix
from kci.plan.inputs.flake import flake_narrows, torch_versions

COMPONENT = '[kernel.a]\nbackend = "cuda"\ndepends = []\nsrc = []\n'


def lint(catalog: Catalog, capabilities: str, *, general: str = "", component: str = "") -> list[tuple[str, str]]:
    parts = f"{COMPONENT}cuda-capabilities = [{capabilities}]\n{component}"
    made = torch_kernel(["cuda"], general=general, components=parts)
    return [(item.rule, item.message) for item in lint_matrix(made, catalog)]


def rules_of(found: list[tuple[str, str]]) -> list[str]:
    return [rule for rule, _ in found]


@pytest.mark.parametrize(
    ("capabilities", "expected"),
    [
        ('"8.0", "9.0a"', []),
        ('"7.5", "8.0", "9.0+PTX"', []),
        ('"8.0", "9.0a", "12.0+PTX"', []),
        ('"8.0", "9.0", "9.0a"', []),
        ('"8.0", "10.1"', ["KCI151"]),
        ('"8.0", "10.1", "11.0"', []),  # both names of the same thing: only 12.6 has neither
        ('"8.0", "11.8"', ["KCI150"]),
        ('"8.0", "sm_90"', ["KCI150"]),
        ('"8.0", "9.0b"', ["KCI150"]),
        ('"8.0", "9.0f"', ["KCI150"]),  # 9.0 has no family
        ('"7.0", "8.0"', ["KCI154"]),  # picked for 7.5, which CUDA 13 has, although CUDA 13 lacks 7.0
        ('"7.0", "7.5", "8.0"', ["KCI151"]),
        ('"5.0", "8.0"', ["KCI151"]),  # 12.6 could build it, but no default picks it
        ('"8.0", "11.0+PTX"', []),
        ('"10.3", "8.0"', ["KCI152"]),
        ('"6.0+PTX", "8.0"', ["KCI154"]),
        ('"10.0a", "10.0"', ["KCI152", "KCI155"]),
        ('"12.0f", "8.0"', []),
        ('"8.0", "8.0"', []),
    ],
)
def test_what_is_said_about_a_list(catalog: Catalog, capabilities: str, expected: list[str]) -> None:
    assert sorted(set(rules_of(lint(catalog, capabilities)))) == expected


@pytest.mark.rule("KCI154", triggers=False)
@pytest.mark.parametrize(
    ("capabilities", "expected"),
    [
        ('"7.5", "8.0", "10.0", "10.1", "12.0"', ["KCI151"]),  # 10.3 of the default list picks no 10.1
        ('"8.0", "9.0", "9.0a"', []),
        ('"7.0", "8.0"', ["KCI151"]),
        ('"6.0+PTX", "8.0"', ["KCI151"]),
        ('"6.0"', ["KCI151", "KCI155"]),
    ],
)
def test_what_is_said_where_lists_are_intersected_exactly(capabilities: str, expected: list[str]) -> None:
    assert sorted(set(rules_of(lint(load_catalog("2026-09-17"), capabilities)))) == expected


def test_toolkits_are_named_and_only_those_of_the_matrix(catalog: Catalog) -> None:
    assert "CUDA 13.0, 13.2" in dict(lint(catalog, '"8.0", "10.1"'))["KCI151"]
    assert "is called 11.0 by" in dict(lint(catalog, '"8.0", "10.1"'))["KCI151"]
    assert "is not supported any more by CUDA 13.0" in dict(lint(catalog, '"7.0", "7.5"'))["KCI151"]
    older = '[general.cuda]\nmaxver = "12.9"\n'
    assert rules_of(lint(catalog, '"7.0", "7.5", "8.0"', general=older)) == []
    newer = '[general.cuda]\nminver = "13.0"\n'
    assert rules_of(lint(catalog, '"8.0", "12.0"', general=newer)) == []


@pytest.mark.rule("KCI152", triggers=True)
@pytest.mark.parametrize("edition", ["2026-08-20", "2026-11-23"])
def test_what_has_no_code_beside_a_suffix_is_one_warning(edition: str) -> None:
    catalog, both = load_catalog(edition), '"9.0", "9.0a", "10.0", "10.0a", "12.0", "12.0a"'
    (message,) = [message for rule, message in lint(catalog, both) if rule == "KCI152"]
    assert "10.0 is dropped by CUDA 13.0, 13.2, where 10.0a takes its place: there is no code for 10.3" in message
    exact = catalog.archs.exact  # else 12.1 of the default list picks 12.0
    assert ("12.0a takes its place: there is no code for 12.1" in message) is exact
    assert " 9.0 " not in message, "no GPU lacks code for it"
    families = both.replace('"10.0"', '"10.0f"').replace('"12.0"', '"12.0f"')
    assert "KCI152" not in rules_of(lint(catalog, families))


@pytest.mark.rule("KCI150", triggers=True)
@pytest.mark.parametrize(
    ("spelled", "meant"), [("sm_90", "9.0"), ("compute_90A", "9.0a"), ("80+ptx", "8.0+PTX"), ("sm_91", "such as")]
)
def test_a_compilers_spelling_is_answered_with_the_one_to_write(catalog: Catalog, spelled: str, meant: str) -> None:
    made = torch_kernel(["cuda"], components=f'{COMPONENT}cuda-capabilities = ["8.0", "{spelled}"]\n')
    (hint,) = [item.hint for item in lint_matrix(made, catalog) if item.rule == "KCI150"]
    assert hint.startswith(meant if meant == "such as" else f'write "{meant}"')


@pytest.mark.rule("KCI150", triggers=True)
@pytest.mark.parametrize("key", ["cuda_capabilities", "cuda-capabilities"])
def test_the_list_of_a_noarch_kernel_is_judged_in_both_spellings(catalog: Catalog, key: str) -> None:
    found = lint_matrix(noarch_kernel(["cuda"], f'{key} = ["8.0", "11.8"]'), catalog)
    assert [(item.rule, item.line) for item in found] == [("KCI150", 8)]


@pytest.mark.rule("KCI156", triggers=True)
@pytest.mark.parametrize("key", ["rocm_archs", "rocm-archs"])
def test_the_rocm_list_of_a_noarch_kernel_is_judged_in_both_spellings(catalog: Catalog, key: str) -> None:
    made = noarch_kernel(["rocm"], f'{key} = ["gfx942", "gfx1151"]')
    found = lint_matrix(made, catalog)
    assert [(item.rule, item.line, item.column) for item in found] == [("KCI156", 8, len(key) + 15)]
    assert "gfx1151" in found[0].message


@pytest.mark.rule("KCI162", triggers=True)
def test_backends_for_which_the_catalog_has_nothing_are_said_where_they_are_declared() -> None:
    found = lint_matrix(noarch_kernel(["cuda", "neuron", "tpu", "cann"]), load_catalog())
    assert [(item.rule, item.line, item.column) for item in found] == [
        ("KCI162", 6, 21),
        ("KCI162", 6, 31),
        ("KCI162", 6, 38),
    ]
    assert "has no row for neuron" in found[0].message
    assert "has only rows that are not bundled for tpu" in found[1].message
    assert "--variant torch-cann" in found[2].hint


@pytest.mark.rule("KCI162", triggers=True)
def test_a_backend_without_a_row_that_has_a_tvm_ffi_is_said(catalog: Catalog) -> None:
    text = '[general]\nname = "ab"\nversion = 1\nedition = 5\nlicense = "MIT"\nbackends = ["cuda", "metal", "neuron"]\n'
    found = lint_matrix(kernel(f"{text}[tvm-ffi]\nsrc = []\n"), catalog)
    assert [(item.rule, item.line, item.column) for item in found] == [("KCI162", 6, 21), ("KCI162", 6, 30)]
    assert "has no row with a tvm-ffi for metal" in found[0].message
    assert "has no row for neuron" in found[1].message


@pytest.mark.rule("KCI162", triggers=False)
def test_of_a_torch_kernel_another_rule_says_it(catalog: Catalog) -> None:
    """No component can be for such a backend: KCI130."""
    component = '[kernel.a]\nbackend = "cpu"\ndepends = []\nsrc = []'
    assert lint_matrix(torch_kernel(["cpu", "neuron"], components=component), catalog) == []


@pytest.mark.rule("KCI155", triggers=True)
def test_rocm_lists_are_exact_and_an_empty_one_stops_the_build(catalog: Catalog) -> None:
    parts = '[kernel.a]\nbackend = "rocm"\ndepends = []\nsrc = []\nrocm-archs = ["gfx940"]\n'
    found = lint_matrix(torch_kernel(["rocm"], components=parts), catalog)
    assert [item.rule for item in found] == ["KCI155", "KCI156"]
    assert "ROCm 7.1, 7.2" in found[0].message


@pytest.mark.rule("KCI158", triggers=True)
def test_a_component_newer_than_every_toolkit_is_in_no_variant(catalog: Catalog) -> None:
    parts = "".join(
        f'[kernel.{name}]\nbackend = "cuda"\ndepends = []\nsrc = []\n{more}\n'
        for name, more in (("a", ""), ("b", 'cuda-minver = "13.4"'))
    )
    found = lint_matrix(torch_kernel(["cuda"], components=parts), catalog)
    assert [item.message for item in found] == ["component `b` is in no variant: CUDA 13.2 is the newest that is built"]


@pytest.mark.rule("KCI160", triggers=True)
def test_a_stable_abi_newer_than_some_rows_names_them(catalog: Catalog) -> None:
    """XPU 2025.3 exists with torch 2.12 only, so an ABI of 2.13 cannot be built there."""
    found = lint_matrix(torch_kernel(["xpu"], torch='stable-abi = { xpu = "2.13" }'), catalog)
    assert [(item.rule, item.line) for item in found] == [("KCI160", 10)]
    assert "1 of the xpu variants" in found[0].message
    assert "torch 2.12" in found[0].message
    assert found[0].hint == "use at most 2.12"


@pytest.mark.rule("KCI160", triggers=True)
def test_one_string_for_every_backend_is_one_finding(catalog: Catalog) -> None:
    found = lint_matrix(torch_kernel(["cpu", "cuda"], torch='stable-abi = "2.14"'), catalog)
    assert [item.rule for item in found] == ["KCI160"]


@pytest.mark.rule("KCI160", triggers=False)
def test_entries_for_undeclared_backends_do_not_count(catalog: Catalog) -> None:
    lint_matrix(torch_kernel(["cuda"], torch='stable-abi = { cuda = "2.11", xpu = "2.99" }'), catalog)


@pytest.mark.rule("KCI161", triggers=True)
def test_torch_bounds_that_drop_everything_are_told_once(catalog: Catalog) -> None:
    found = lint_matrix(torch_kernel(["cpu", "cuda"], torch='minver = "2.99"'), catalog)
    assert [(item.rule, item.line) for item in found] == [("KCI161", 10)]
    assert "torch 2.12, 2.13" in found[0].message


@pytest.mark.rule("KCI161", triggers=True)
def test_rows_without_a_tvm_ffi_do_not_count_for_bounds() -> None:
    """CUDA 13.2 is the only row of the edition that has one."""
    text = '[general]\nname = "ab"\nversion = 1\nedition = 5\nlicense = "MIT"\nbackends = ["cuda"]\n'
    made = kernel(f'{text}[general.cuda]\nmaxver = "13.0"\n[tvm-ffi]\nsrc = []\n')
    found = lint_matrix(made, load_catalog("2026-09-17"))
    assert [(item.rule, item.line) for item in found] == [("KCI161", 8)]
    assert found[0].message.endswith("has CUDA 13.2")


@pytest.mark.rule("KCI161", triggers=False)
@pytest.mark.parametrize(
    ("backend", "torch", "general"),
    [
        ("cuda", 'minver = "2.13"\nmaxver = "2.12"', '[general.cuda]\nminver = "12.6"'),
        ("cuda", "", '[general.cuda]\nminver = "13.2"\nmaxver = "12.6"'),
        ("cuda", "", '[general.cuda]\nminver = "13.2"'),
        ("cpu", "", '[general.cuda]\nminver = "99"'),
    ],
    ids=["torch inverted", "cuda inverted", "cuda kept", "cuda not declared"],
)
def test_bounds_that_another_rule_is_about(catalog: Catalog, backend: str, torch: str, general: str) -> None:
    lint_matrix(torch_kernel([backend], torch=torch, general=general), catalog)


FLAGS = """\
[general]
name = "fast"
version = 1
edition = 5
license = "mit"
backends = ["cpu", "cuda"]
hub.repo-id = "acme/fast"
[torch]
[kernel.a]
backend = "{backend}"
depends = []
src = []
cxx-flags = [{flags}]
[kernel.b]
backend = "{other}"
depends = []
src = []
"""


def _of_x86(catalog: Catalog, flags: str, backend: str = "cpu", overlay: str = "") -> list[Diagnostic]:
    text = FLAGS.format(backend=backend, other={"cpu": "cuda", "cuda": "cpu"}[backend], flags=flags)
    overlays = [(None, read_overlay(parse_document(overlay.encode(), "kci.toml")))]
    found = lint_matrix(parse_kernel(text.encode()), for_kernel(catalog, overlays, "fast"))
    return [item for item in found if item.rule == "KCI169"]


@pytest.mark.rule("KCI169", triggers=True)
@pytest.mark.parametrize(
    "flag",
    ["-mavx2", "-mavx512bf16", "-msse4.2", "-mssse3", "-mfma", "-march=x86-64-v3", "-march=haswell", "-mtune=znver4",
     "-m64", "-Xcompiler=-mavx2,-O2", "$<$<CXX_COMPILER_ID:GNU>:-mf16c>", "-march=icelake-server", "-mamx-tile"],
)  # fmt: skip
def test_a_flag_of_x86_that_is_planned_for_arm_names_the_overlay_that_mends_it(flag: str, catalog: Catalog) -> None:
    for backend in ("cpu", "cuda"):
        (found,) = _of_x86(catalog, f'"-O3", "{flag}", "{flag}"', backend)
        assert (found.severity, found.line) == (Severity.ERROR, 13)
        assert "and 1 more" in found.message
        _, _, *overlay = found.hint.splitlines()
        assert overlay[0] == 'kernel = "fast"'
        assert _of_x86(catalog, f'"{flag}"', backend, overlay[1]) == []


@pytest.mark.rule("KCI169", triggers=False)
def test_flags_that_compilers_for_arm_take_too(catalog: Catalog) -> None:
    flags = ["-march=armv8.2-a+sve", "-mcpu=neoverse-v1", "-mtune=cortex-a76", "-mcmodel=large",
             "-msve-vector-bits=512", "-march=native", "$<$<PLATFORM_ID:Windows>:-mavx2>"]  # fmt: skip
    assert _of_x86(catalog, ", ".join(map('"{}"'.format, flags))) == []


NARROWING = """{ # torchVersions = _: [ ];
  outputs = { self, kernel-builder }: kernel-builder.lib.genKernelFlakeOutputs {
    path = ./.;
    torchVersions = FUNCTION;
  };
}
"""
X86_ALONE = 'all: map (v: v // { systems = builtins.filter (system: TEST system == "x86_64-linux") v.systems; }) all'
FLAKES = {
    X86_ALONE.replace("TEST ", ""): 'keep = ["system == x86_64-linux"]',
    X86_ALONE.replace("TEST", '!(v ? "cpu") ||'): 'keep = ["backend != cpu or system == x86_64-linux"]',
    X86_ALONE.replace("TEST", "! v ? cudaVersion ||"): 'keep = ["backend != cuda or system == x86_64-linux"]',
    X86_ALONE.replace("TEST ", "").replace("==", "!="): 'keep = ["system != x86_64-linux"]',
    "import ./versions.nix": 'drop = ["backend == cpu and system == aarch64-linux"]',
}


@pytest.mark.rule("KCI170", triggers=True)
@pytest.mark.parametrize("function", FLAKES)
def test_a_flake_that_narrows_is_said_until_an_overlay_does_the_same(
    function: str, catalog: Catalog, tmp_path: Path
) -> None:
    kernel = parse_kernel(FLAGS.format(backend="cpu", other="cuda", flags="").encode(), "k", "k/build.toml")
    assert list(flake_narrows(kernel, catalog, tmp_path)) == []
    (tmp_path / "flake.nix").write_text(NARROWING.replace("FUNCTION", function))
    (found,) = flake_narrows(kernel, catalog, tmp_path)
    assert (found.path, found.line) == (str(tmp_path / "flake.nix"), 4)
    assert found.hint.endswith(f'[[overlay]]\nkernel = "fast"\n{FLAKES[function]}')
    overlay = read_overlay(parse_document(FLAKES[function].encode(), "kci.toml"))
    assert list(flake_narrows(kernel, for_kernel(catalog, [(None, overlay)], "fast"), tmp_path)) == []


@pytest.mark.rule("KCI170", triggers=False)
@pytest.mark.parametrize(
    "flake", ["{ # torchVersions = x;\n}", "{ /* torchVersions */ }", "{ y = defaults.torchVersions; }"]
)
def test_a_flake_that_does_not_narrow(flake: str) -> None:
    assert torch_versions(flake.encode()) is None
