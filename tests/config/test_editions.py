"""Which edition a file is, and what is said about files of older ones (docs/format.md#editions)."""

from __future__ import annotations

import re

import pytest

from conftest import kernel, only, refusal
from kci.config.model import TvmFfi
from kci.config.update import plan_update

GENERAL = '[general]\nname = "ab"\nversion = 1\nlicense = "x"\nbackends = ["cuda", "xpu"]\n'


@pytest.mark.rule("KCI117", triggers=False)
def test_edition_5() -> None:
    for edition in ("5", "0x5", "+5", "0b101"):
        read = kernel(f"{GENERAL}edition = {edition}\n[torch]\n")
        assert (read.edition, read.diagnostics) == (5, ())


NOT_5 = {
    edition: edition for edition in ("4", "3", "0", "-1", "7", "4294967295", "4294967296", "true")
} | {"5.0": "a float", '"5"': "a string", "1979-05-27": "a date or time", "[5]": "an array"}


@pytest.mark.parametrize("edition", NOT_5)
def test_any_other_edition_is_refused_and_nothing_else_is_tried(edition: str) -> None:
    (found,) = refusal(kernel, f"{GENERAL}edition = {edition}\nnonsense = 1\n")
    assert (found.rule, found.line, found.column) == ("KCI105", 6, 11)
    assert found.message == f"`general.edition` must be 5, not {NOT_5[edition]}"
    newer = edition in ("7", "4294967295", "4294967296")
    assert ("newest edition that this kci knows is 6" in found.hint) is newer


def test_without_an_edition_it_is_edition_4_with_one_warning() -> None:
    read = kernel(GENERAL + '[torch]\nstable-abi = "2.9"\n')
    assert read.edition == 4
    assert [found.rule for found in read.diagnostics] == ["KCI107"]
    assert "kci update ." in read.diagnostics[0].hint
    assert str(read.build.stable_abi("cuda")) == str(read.build.stable_abi("xpu")) == "2.9"


@pytest.mark.parametrize(
    ("text", "key", "line"),
    [
        ("kernel-depends = []\n[torch]", "general.kernel-depends", 6),
        ("[general.tpu]\n[torch]", "general.tpu", 6),
        ("[general.cuda]\nkernel-depends = []\n[torch]", "general.cuda.kernel-depends", 7),
        ("[general.xpu]\nkernel-depends = []\n[torch]", "general.xpu.kernel-depends", 7),
        ("[general.neuron]\nkernel-depends = []\n[torch]", "general.neuron.kernel-depends", 7),
        ('[torch]\nstable-abi = { cuda = "2.9" }', "torch.stable-abi", 7),
        ("[torch.stable-abi]", "torch.stable-abi", 6),
    ],
)
def test_edition_4_has_no_newer_keys(text: str, key: str, line: int) -> None:
    (found,) = refusal(kernel, f"{GENERAL}{text}\n")
    assert (found.rule, found.line) == ("KCI105", line)
    assert found.message.startswith(f"`{key}` exists from edition 5 on")
    assert kernel(f"{GENERAL}edition = 5\n{text}\n")


@pytest.mark.parametrize(
    ("lacking", "framework"),
    [
        (["version"], "[torch]\n"), (["license"], "[torch]\n"), ([], ""),
        (["version"], "[tvm-ffi]\nsrc = []\n"), (["version", "license"], ""),
    ],
)  # fmt: skip
def test_version_3_is_refused_with_all_that_it_lacks(lacking: list[str], framework: str) -> None:
    lines = [line for line in GENERAL.splitlines() if line.partition(" ")[0] not in lacking]
    (found,) = refusal(kernel, "\n".join(lines) + f"\n{framework}")
    assert (found.rule, found.line) == ("KCI108", 1)
    said, _, table = found.hint.partition(" to `[general]`")
    added = re.findall(r"`(\w+ = [^`]+)`", said)
    assert {one.partition(" ")[0] for one in added} == {*lacking, "edition"}
    assert ("`[torch-noarch]`" in table) is not bool(framework)
    written = kernel("\n".join([*lines, *added]) + "\n" + (framework or "[torch-noarch]\n"))
    assert written.edition == 5


@pytest.mark.parametrize(
    "extra",
    [
        'source = "https://h/x"', "kernel-depends = []", "unknown = 1", "[torch-noarch]",
        "[torch]\n[tvm-ffi]\nsrc = []", "[torch]\ncxx-flags = []", '[torch]\nstable-abi = "2.9"',
        "[torch]\nsrcs = []", "[general.tpu]", '[kernel.a]\nbackend = "cuda"\nsrc = []',
    ],
)  # fmt: skip
def test_what_version_3_does_not_have_makes_it_an_invalid_later_file(extra: str) -> None:
    rules = {found.rule for found in refusal(kernel, GENERAL.replace("version = 1\n", "") + extra)}
    assert "KCI108" not in rules
    assert "KCI102" in rules


OLDEST = """\
[general]
name = "ab"
cuda-minver = "12.4"
universal = false
[torch]
src = []
[kernel.a]
language = "cuda"
src = []
"""


@pytest.mark.parametrize(
    "text", [OLDEST, *('[general]\nname = "ab"\n' + more for more in (
        "[torch]\nuniversal = true\n", 'cuda-maxver = "12.4"\n', '[kernel.a]\nlanguage = "cuda"\n'
    ))],
)  # fmt: skip
def test_versions_1_and_2_are_refused_with_what_has_to_change(text: str) -> None:
    (found,) = refusal(kernel, text)
    assert found.rule == "KCI108"
    assert found.message == "a file of version 1, 2 or 3, which kci does not read"
    keys = '`version = 1`, `edition = 5`, `license = "..."`, `backends = ["..."]`'
    assert found.hint.startswith(f"add {keys} to `[general]`; ")
    each = "give each component `backend`, `depends` and `src`"
    assert found.hint.endswith(f"{each}, and remove `universal` and `language`")


# --- edition 6, read into the same build config with one note -------------------------------------

IN_6 = GENERAL.replace("backends", "edition = 6\nbackends").replace("xpu", "cpu")
SIX = f"""{IN_6}
[torch]
src = ["a.cpp"]
stable-abi = "2.11"

[kernel.one]
language = "cpp-cuda"   # was backend
depends = ["torch"]
src = ["a.cu"]
cuda-capabilities = ["8.0"]

[kernel.two]
language = 'cpp-cpu'
depends = []
src = []
"""
FIVE = SIX.replace("edition = 6", "edition = 5").replace("language", "backend").replace("cpp-", "")


@pytest.mark.rule("KCI117", triggers=True)
def test_edition_6_is_the_same_build_with_one_note() -> None:
    read = kernel(SIX)
    assert (read.edition, read.build) == (6, kernel(FIVE).build)
    found = only(read.diagnostics, "KCI117", "not released")
    assert (found.severity, found.line) == ("info", 5)
    assert plan_update(SIX.encode()).changes == ()
    # a Rust component is one for the CPU, with its manifest among the sources
    component = 'language = "rust-cpu"\ncargo-manifest = "r/Cargo.toml"\ndepends = []\n'
    rust = kernel(f'{IN_6}[tvm-ffi]\n[kernel.r]\n{component}src = ["r/lib.rs"]\n').build
    assert rust.tvm_ffi == TvmFfi(src=())
    assert [part.src for part in rust.components("cpu").values()] == [("r/lib.rs", "r/Cargo.toml")]
    without = f'{IN_6}[tvm-ffi]\n[kernel.r]\nlanguage = "rust-cpu"\ndepends = []\nsrc = []\n'
    only(refusal(kernel, without), "KCI102", "lacks the key `cargo-manifest`")


LANGUAGE = "`kernel.a` must have a `language`, and no `backend`"


@pytest.mark.parametrize(
    ("component", "rule", "said", "hint", "line"),
    [
        ("", "KCI104", LANGUAGE, "one of: cpp-cpu", 8),
        ('language = "ccp-cuda"\n', "KCI104", LANGUAGE, "did you mean `cpp-cuda`", 9),
        ("language = 5\n", "KCI104", LANGUAGE, "one of: cpp-cpu", 9),
        ('language = "cpp-cpu"\nbackend = "cpu"\n', "KCI104", LANGUAGE, "remove `backend`", 9),
        ('language = "rust-cpu"\n', "KCI104", LANGUAGE, "`rust-cpu` is for a kernel with", 9),
        ('cargo-manifest = "x"\nlanguage = "cpp-cpu"\n', "KCI101", "`cargo-manifest`", "", 9),
        ('depends = ""\nlanguage = "cpp-cpu"\n', "KCI103", "must be an array", "", 9),
    ],
)
def test_what_is_wrong_with_a_component_of_edition_6_is_said_once_and_at_its_place(
    component: str, rule: str, said: str, hint: str, line: int
) -> None:
    usual = "src = []\n" if "depends" in component else "src = []\ndepends = []\n"
    (found,) = refusal(kernel, f"{IN_6}[torch]\n[kernel.a]\n{component}{usual}")
    assert (found.rule, found.line) == (rule, line)
    assert said in found.message
    assert found.hint.startswith(hint)
