"""Lints that know the toolkits and torch versions of a kernel's own matrix."""

from __future__ import annotations

from pathlib import Path

import pytest

from conftest import noarch_kernel, torch_kernel
from kci.config.document import parse_document
from kci.config.reader import Kernel, parse_kernel
from kci.diagnostics import Diagnostic, Severity
from kci.matrix.catalog.loading import for_kernel, load_catalog, read_overlay
from kci.matrix.catalog.rows import Catalog
from kci.matrix.lints import lint_matrix
from kci.plan.inputs.flake import flake_narrows, torch_versions

COMPONENT = '[kernel.a]\nbackend = "cuda"\ndepends = []\nsrc = []\n'


def lint(catalog: Catalog, capabilities: str, *, general: str = "") -> list[tuple[str, str]]:
    parts = f"{COMPONENT}cuda-capabilities = [{capabilities}]\n"
    made = torch_kernel(["cuda"], general=general, components=parts)
    return [(item.rule, item.message) for item in lint_matrix(made, catalog)]


def rules_of(catalog: Catalog, capabilities: str, general: str = "") -> list[str]:
    return [rule for rule, _ in lint(catalog, capabilities, general=general)]


LISTS = [
    ('"8.0", "9.0a"', ""),
    ('"7.5", "8.0", "9.0+PTX"', ""),
    ('"8.0", "9.0a", "12.0+PTX"', ""),
    ('"8.0", "9.0", "9.0a"', ""),
    ('"8.0", "10.1"', "KCI151"),
    ('"8.0", "10.1", "11.0"', ""),  # both names of the same thing: only 12.6 has neither
    ('"8.0", "11.8"', "KCI150"),
    ('"8.0", "sm_90"', "KCI150"),
    ('"8.0", "9.0b"', "KCI150"),
    ('"8.0", "9.0f"', "KCI150"),  # 9.0 has no family
    ('"7.0", "8.0"', "KCI154"),  # picked for 7.5, which CUDA 13 has, although CUDA 13 lacks 7.0
    ('"7.0", "7.5", "8.0"', "KCI151"),
    ('"5.0", "8.0"', "KCI151"),  # 12.6 could build it, but no default picks it
    ('"8.0", "11.0+PTX"', ""),
    ('"10.3", "8.0"', "KCI152"),
    ('"6.0+PTX", "8.0"', "KCI154"),
    ('"10.0a", "10.0"', "KCI152 KCI155"),
    ('"12.0f", "8.0"', ""),
    ('"8.0", "8.0"', ""),
]
EXACT = [
    ('"7.5", "8.0", "10.0", "10.1", "12.0"', "KCI151"),  # 10.3 of the default list picks no 10.1
    ('"8.0", "9.0", "9.0a"', ""),
    ('"7.0", "8.0"', "KCI151"),
    ('"6.0+PTX", "8.0"', "KCI151"),
    ('"6.0"', "KCI151 KCI155"),
]


@pytest.mark.parametrize(
    ("edition", "capabilities", "expected"),
    [
        *(("2026-08-20", *case) for case in LISTS),
        *(
            pytest.param("2026-09-17", *case, marks=pytest.mark.rule("KCI154", triggers=False))
            for case in EXACT
        ),
    ],
)
def test_what_is_said_about_a_list(edition: str, capabilities: str, expected: str) -> None:
    assert " ".join(sorted(set(rules_of(load_catalog(edition), capabilities)))) == expected


def test_toolkits_are_named_and_only_those_of_the_matrix(catalog: Catalog) -> None:
    assert "CUDA 13.0, 13.2" in dict(lint(catalog, '"8.0", "10.1"'))["KCI151"]
    assert "is called 11.0 by" in dict(lint(catalog, '"8.0", "10.1"'))["KCI151"]
    assert "is not supported any more by CUDA 13.0" in dict(lint(catalog, '"7.0", "7.5"'))["KCI151"]
    older = '[general.cuda]\nmaxver = "12.9"\n'
    assert rules_of(catalog, '"7.0", "7.5", "8.0"', older) == []
    newer = '[general.cuda]\nminver = "13.0"\n'
    assert rules_of(catalog, '"8.0", "12.0"', newer) == []


@pytest.mark.rule("KCI152", triggers=True)
@pytest.mark.parametrize("edition", ["2026-08-20", "2026-11-23"])
def test_what_has_no_code_beside_a_suffix_is_one_warning(edition: str) -> None:
    catalog, both = load_catalog(edition), '"9.0", "9.0a", "10.0", "10.0a", "12.0", "12.0a"'
    (message,) = [message for rule, message in lint(catalog, both) if rule == "KCI152"]
    dropped = "10.0 is dropped by CUDA 13.0, 13.2, where 10.0a takes its place"
    assert f"{dropped}: there is no code for 10.3" in message
    exact = catalog.archs.exact  # else 12.1 of the default list picks 12.0
    assert ("12.0a takes its place: there is no code for 12.1" in message) is exact
    assert " 9.0 " not in message, "no GPU lacks code for it"
    families = both.replace('"10.0"', '"10.0f"').replace('"12.0"', '"12.0f"')
    assert "KCI152" not in rules_of(catalog, families)


@pytest.mark.rule("KCI150", triggers=True)
@pytest.mark.parametrize(
    ("spelled", "meant"),
    [("sm_90", "9.0"), ("compute_90A", "9.0a"), ("80+ptx", "8.0+PTX"), ("sm_91", "such as")],
)
def test_a_compilers_spelling_is_corrected(catalog: Catalog, spelled: str, meant: str) -> None:
    parts = f'{COMPONENT}cuda-capabilities = ["8.0", "{spelled}"]\n'
    made = torch_kernel(["cuda"], components=parts)
    (hint,) = [item.hint for item in lint_matrix(made, catalog) if item.rule == "KCI150"]
    assert hint.startswith(meant if meant == "such as" else f'write "{meant}"')


ROCM = '[kernel.a]\nbackend = "rocm"\ndepends = []\nsrc = []\nrocm-archs = ["gfx940"]\n'
NEWER = COMPONENT + COMPONENT.replace(".a]", ".b]") + 'cuda-minver = "13.4"'
IN_CUDA = "[general.cuda]\n{}\n[tvm-ffi]\nsrc = []\n"
CASES = [
    ("noarch, snake_case", "150:8:29", [], noarch_kernel(["cuda"],
        'cuda_capabilities = ["8.0", "11.8"]')),
    ("noarch, kebab-case", "150:8:29", [], noarch_kernel(["cuda"],
        'cuda-capabilities = ["8.0", "11.8"]')),
    ("targets, snake_case", "156:8:25", ["gfx1151"],
        noarch_kernel(["rocm"], 'rocm_archs = ["gfx942", "gfx1151"]')),
    ("targets, kebab-case", "156:8:25", ["gfx1151"],
        noarch_kernel(["rocm"], 'rocm-archs = ["gfx942", "gfx1151"]')),
    ("no rows, noarch", "162:6:21 162:6:31 162:6:38",
     ["has no row for neuron", "has only rows that are not bundled for tpu",
         "--variant torch-cann"],
     noarch_kernel(["cuda", "neuron", "tpu", "cann"])),
    ("no rows with a tvm-ffi", "162:6:21 162:6:30",
        ["has no row with a tvm-ffi for metal", "has no row for neuron"],
     noarch_kernel(["cuda", "metal", "neuron"], "[tvm-ffi]\nsrc = []\n")),
    ("no rows for [torch], which is KCI130", "-162", [],
     torch_kernel(["cpu", "neuron"], components=COMPONENT.replace("cuda", "cpu"))),
    ("targets are exact, and an empty list stops the build", "155:15:1 156:15:15",
        ["ROCm 7.1, 7.2"],
     torch_kernel(["rocm"], components=ROCM)),
    ("a component newer than every toolkit", "158:19:15",
     ["component `b` is in no variant: CUDA 13.2 is the newest that is built"],
     torch_kernel(["cuda"], components=NEWER)),
    ("a stable ABI newer than XPU's one torch", "160:10:21",
     ["1 of the xpu variants; torch 2.12; use at most 2.12"],
     torch_kernel(["xpu"], torch='stable-abi = {xpu = "2.13"}')),
    ("a stable ABI for every backend", "160:10:14", [],
        torch_kernel(["cpu", "cuda"], torch='stable-abi = "2.14"')),
    ("a stable ABI for an undeclared backend", "-160", [],
     torch_kernel(["cuda"], torch='stable-abi = { cuda = "2.11", xpu = "2.99" }')),
    ("torch bounds, once", "161:10:10", ["torch 2.12, 2.13"],
        torch_kernel(["cpu", "cuda"], torch='minver = "2.99"')),
    ("CUDA bounds without the only row with a tvm-ffi", "161:8:10", ["has CUDA 13.2"],
     noarch_kernel(["cuda"], IN_CUDA.format('maxver = "13.0"'))),
    ("torch bounds inverted", "-161", [],
     torch_kernel(["cuda"], torch='minver = "2.13"\nmaxver = "2.12"',
         general='[general.cuda]\nminver = "12.6"')),
    ("CUDA bounds inverted", "-161", [],
     torch_kernel(["cuda"], general='[general.cuda]\nminver = "13.2"\nmaxver = "12.6"')),
    ("CUDA bounds that keep some", "-161", [],
        torch_kernel(["cuda"], general='[general.cuda]\nminver = "13.2"')),
    ("CUDA bounds without CUDA", "-161", [], torch_kernel(["cpu"],
        general='[general.cuda]\nminver = "99"')),
]  # fmt: skip
EDITIONS = {
    "no rows, noarch": None,
    "CUDA bounds without the only row with a tvm-ffi": "2026-09-17",
}


@pytest.mark.parametrize(
    ("name", "places", "says", "made"),
    [
        pytest.param(
            *case,
            id=case[0],
            marks=pytest.mark.rule(f"KCI{case[1].strip('-')[:3]}", triggers=case[1][0] != "-"),
        )
        for case in CASES
    ],
)
def test_what_is_said_of_a_kernel(name: str, places: str, says: list[str], made: Kernel) -> None:
    """Nothing, where a rule stands with a minus."""
    found = lint_matrix(made, load_catalog(EDITIONS.get(name, "2026-08-20")))
    at = " ".join(f"{item.rule[3:]}:{item.line}:{item.column}" for item in found)
    assert at == ("" if places.startswith("-") else places)
    for item, parts in zip(found, says, strict=False):
        assert all(part in f"{item.message}; {item.hint}" for part in parts.split("; "))


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


def _of_x86(
    catalog: Catalog, flags: str, backend: str = "cpu", overlay: str = ""
) -> list[Diagnostic]:
    text = FLAGS.format(backend=backend, other={"cpu": "cuda", "cuda": "cpu"}[backend], flags=flags)
    overlays = [(None, read_overlay(parse_document(overlay.encode(), "kci.toml")))]
    found = lint_matrix(parse_kernel(text.encode()), for_kernel(catalog, overlays, "fast"))
    return [item for item in found if item.rule == "KCI169"]


@pytest.mark.rule("KCI169", triggers=True)
@pytest.mark.parametrize(
    "flag",
    ["-mavx2", "-mavx512bf16", "-msse4.2", "-mssse3", "-mfma", "-march=x86-64-v3", "-march=haswell",
        "-mtune=znver4",
     "-m64", "-Xcompiler=-mavx2,-O2", "$<$<CXX_COMPILER_ID:GNU>:-mf16c>", "-march=icelake-server",
     "-mamx-tile"],
)  # fmt: skip
def test_a_flag_of_x86_that_is_planned_for_arm_names_the_overlay_that_mends_it(
    flag: str, catalog: Catalog
) -> None:
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
             "-msve-vector-bits=512", "-march=native",
             "$<$<PLATFORM_ID:Windows>:-mavx2>"]  # fmt: skip
    assert _of_x86(catalog, ", ".join(map('"{}"'.format, flags))) == []


NARROWING = """{ # torchVersions = _: [ ];
  outputs = { self, kernel-builder }: kernel-builder.lib.genKernelFlakeOutputs {
    path = ./.;
    torchVersions = FUNCTION;
  };
}
"""
X86_ALONE = (
    'all: map (v: v // { systems = builtins.filter (system: TEST system == "x86_64-linux") '
    "v.systems; }) all"
)
FLAKES = {
    X86_ALONE.replace("TEST ", ""): 'keep = ["system == x86_64-linux"]',
    X86_ALONE.replace(
        "TEST", '!(v ? "cpu") ||'
    ): 'keep = ["backend != cpu or system == x86_64-linux"]',
    X86_ALONE.replace(
        "TEST", "! v ? cudaVersion ||"
    ): 'keep = ["backend != cuda or system == x86_64-linux"]',
    X86_ALONE.replace("TEST ", "").replace("==", "!="): 'keep = ["system != x86_64-linux"]',
    "import ./versions.nix": 'drop = ["backend == cpu and system == aarch64-linux"]',
}


@pytest.mark.rule("KCI170", triggers=True)
@pytest.mark.parametrize("function", FLAKES)
def test_a_flake_that_narrows_is_said_until_an_overlay_does_the_same(
    function: str, catalog: Catalog, tmp_path: Path
) -> None:
    text = FLAGS.format(backend="cpu", other="cuda", flags="")
    kernel = parse_kernel(text.encode(), "k", "k/build.toml")
    assert list(flake_narrows(kernel, catalog, tmp_path)) == []
    (tmp_path / "flake.nix").write_text(NARROWING.replace("FUNCTION", function))
    (found,) = flake_narrows(kernel, catalog, tmp_path)
    assert (found.path, found.line) == (str(tmp_path / "flake.nix"), 4)
    assert found.hint.endswith(f'[[overlay]]\nkernel = "fast"\n{FLAKES[function]}')
    overlay = read_overlay(parse_document(FLAKES[function].encode(), "kci.toml"))
    narrowed = for_kernel(catalog, [(None, overlay)], "fast")
    assert list(flake_narrows(kernel, narrowed, tmp_path)) == []


@pytest.mark.rule("KCI170", triggers=False)
@pytest.mark.parametrize(
    "flake",
    ["{ # torchVersions = x;\n}", "{ /* torchVersions */ }", "{ y = defaults.torchVersions; }"],
)
def test_a_flake_that_does_not_narrow(flake: str) -> None:
    assert torch_versions(flake.encode()) is None
