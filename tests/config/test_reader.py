"""What a build.toml may say (docs/format.md#build-toml), and what is said about one that says
something else.
"""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from conftest import failure, ids, kernel, refusal
from kci.config import update
from kci.config.discovery import companion, find_kernels
from kci.config.model import CudaComponent
from kci.config.reader import parse_kernel, read_kernel
from kci.config.type_errors import MAX_PROBLEMS
from kci.diagnostics import Diagnostic, rules
from kci.errors import FindingsError, UsageError
from kci.plan.workspace import open_workspace

HEAD = '[general]\nname = "ab"\nversion = 1\nedition = 5\nlicense = "x"\nbackends = ["cuda"]\n'
GOOD = HEAD + "[torch]\n"
COMPONENT = '[kernel.k]\nbackend = "cuda"\ndepends = ["torch"]\nsrc = []\n'


def found_in(text: str | bytes) -> list[Diagnostic]:
    """Everything that reading says about a file, right or wrong."""
    try:
        return list(parse_kernel(text.encode() if isinstance(text, str) else text).diagnostics)
    except FindingsError as error:
        return list(error.diagnostics)


# --- every rule of reading speaks where it should and is silent where it should -------------------

CASES: list[tuple[str, str | bytes, tuple[int, int]]] = [
    ("KCI002", b"#" * 2_000_000, (0, 0)),
    ("KCI003", b"# \xff", (1, 3)),
    ("KCI004", "x", (1, 2)),
    ("KCI101", GOOD + "scr = []", (8, 1)),
    ("KCI102", GOOD.replace('license = "x"\n', ""), (1, 2)),
    ("KCI103", GOOD + "src = 1", (8, 7)),
    ("KCI104", GOOD + 'minver = "2.x"', (8, 10)),
    ("KCI105", GOOD.replace("edition = 5", "edition = 4"), (4, 11)),
    ("KCI106", GOOD + "[torch-noarch]", (8, 2)),
    ("KCI107", GOOD.replace("edition = 5\n", ""), (1, 2)),
    ("KCI108", GOOD.replace('edition = 5\nlicense = "x"\n', ""), (1, 2)),
    ("KCI110", HEAD + "[torch-noarch]\ncuda_capabilities = []\ncuda-capabilities = []", (9, 1)),
    ("KCI111", HEAD + "[torch-noarch]\ncuda-capabilities = []", (8, 1)),
    ("KCI116", GOOD + "src = [" + "1," * 500 + "]", (0, 0)),
]


@pytest.mark.parametrize(
    ("rule", "text", "place"),
    [
        pytest.param(*case, id=case[0], marks=pytest.mark.rule(case[0], triggers=True))
        for case in CASES
    ],
)
def test_a_rule_speaks_at_its_place(rule: str, text: str | bytes, place: tuple[int, int]) -> None:
    (found, *_) = (one for one in found_in(text) if one.rule == rule)
    assert (found.line, found.column) == place
    assert found.severity is rules()[rule].severity
    assert found.path == "build.toml"


SILENT = ["KCI001", "KCI114", "KCI115", *(case[0] for case in CASES)]


@pytest.mark.parametrize(
    "rule", [pytest.param(rule, marks=pytest.mark.rule(rule, triggers=False)) for rule in SILENT]
)
def test_a_rule_is_silent_about_a_right_file(rule: str, tmp_path: Path) -> None:
    file = tmp_path / "build.toml"
    file.write_text(GOOD + 'stable-abi = { cuda = "2.11" }\n' + COMPONENT)
    assert rule not in [found.rule for found in read_kernel(tmp_path).diagnostics]
    assert update.plan_update(file.read_bytes()).changes == ()


@pytest.mark.rule("KCI001", "KCI115", triggers=True)
def test_a_missing_file(tmp_path: Path) -> None:
    (found,) = refusal(read_kernel, tmp_path)
    assert found.message == "there is no build.toml here"
    planned = update.plan_update(GOOD.replace("edition = 5\n", "").encode())
    (found,) = refusal(update.write_update, tmp_path / "build.toml", planned)
    assert "No such file" in found.message


# --- what is easily read wrong --------------------------------------------------------------------


@pytest.mark.parametrize(
    "text",
    [
        GOOD,
        GOOD + "[kernel]\n",
        GOOD + COMPONENT.replace('"cuda"', '"rocm"'),  # a backend that is not declared
        GOOD + '[kernel.""]\nbackend = "cpu"\ndepends = []\nsrc = []\n',
        GOOD.replace('["cuda"]', '["cuda", "cuda"]'),
        GOOD.replace('["cuda"]', "[]"),
        GOOD.replace("version = 1", "version = 0"),
        GOOD.replace('license = "x"', 'license = ""'),
        GOOD + "stable-abi = {}",
        HEAD + 'python-depends = ["no-such-package"]\n[torch]\n',  # docs/format.md#dependencies
        HEAD + "[general.cuda]\nminver = '13.2'\nmaxver = '12.6'\n[torch]\n",
        HEAD + "[general.neuron]\n[general.xpu]\n[general.tpu]\n[torch-noarch]\n",
        HEAD + "[tvm-ffi]\nsrc = []\n",
        HEAD + "[torch-noarch]\n" + COMPONENT,
    ],
)
def test_what_the_reference_accepts(text: str) -> None:
    assert found_in(text) == []


REFUSED = [
    (HEAD, "106 no framework table"),
    (GOOD + "[tvm-ffi]\nsrc = []", "106 `[tvm-ffi]` cannot be combined with `[torch]`"),
    (HEAD + "[tvm-ffi]", "102 `tvm-ffi` lacks the key `src`"),
    (GOOD + "[kernel.a]\n", "102 `kernel.a` lacks the key `backend`"),
    (GOOD + '[kernel.a]\nbackend = "cuda"\nsrc = []', "102 `kernel.a` lacks the key `depends`"),
    (GOOD + '[kernel.a]\nbackend = "tpu"\ndepends = []\nsrc = []',
     "104 'tpu' is not a backend for a component"),
    (GOOD + COMPONENT + "rocm-archs = []", "101 `rocm-archs` is not a key of `[kernel.k]`"),
    (GOOD + COMPONENT + "cuda_capabilities = []", "101 `cuda_capabilities` is not a key"),
    (GOOD + COMPONENT.replace('["torch"]', '["cutlass_9"]'),
     "104 'cutlass_9' is not a C++ dependency"),
    (GOOD + "minver = 2.12", "103 `torch.minver` must be a string, not a float"),
    (GOOD + 'stable-abi = { npu = "2.11" }', "101 `npu` is not a backend"),
    (GOOD + "stable-abi = 2.11", "103 must be a version or a table"),
    (HEAD + "[general.rocm]\n[torch]", "101 `rocm` is not a key of `[general]`"),
    (HEAD + "[general.tpu]\nkernel-depends = []\n[torch]",
     "101 `kernel-depends` is not a key of `[general.tpu]`"),
    (GOOD.replace('["cuda"]', '"cuda"'), "103 `general.backends` must be an array, not a string"),
    (GOOD.replace('["cuda"]', '["npu"]'), "104 'npu' is not a backend"),
    (GOOD.replace("version = 1", "version = -1"), "104 `general.version` must not be negative"),
    (GOOD.replace("version = 1", "version = true"), "103 must be an integer, not a boolean"),
    (GOOD.replace("version = 1", f"version = {2**63}"), "104 `general.version` is too large"),
    (GOOD.replace("version = 1", "version = 1979-05-27"),
     "103 must be an integer, not a date or time"),
    (HEAD + "hub = 1979-05-27\n[torch]", "103 `general.hub` must be a table, not a date or time"),
    (HEAD + 'upstream = "ftp://x/y"\n[torch]', "104 has the scheme 'ftp'"),
    (HEAD + 'kernel-depends = [{ repo-id = "a/b" }]\n[torch]',
     "104 exactly one of `version` and `revision`"),
    (GOOD + "other = 1\n[other]", "101 `other` is not a key of a build.toml"),
    ("general = 1\n[torch]", "103 `general` must be a table, not an integer"),
    ("[torch]", "102 the file lacks the key `general`"),
    (GOOD + "scr = []", "101 did you mean `src`?"),
    (GOOD + "stable_abi = '2.11'", "101 did you mean `stable-abi`?"),
    (GOOD.replace('["cuda"]', '["cudaa"]'), "104 did you mean `cuda`?"),
    (GOOD.replace('["cuda"]', '["CUDA"]'), "104 did you mean `cuda`?"),
    (GOOD + COMPONENT.replace('["torch"]', '["cutlass-3-9"]'), "104 did you mean `cutlass_3_9`?"),
    (GOOD.replace("[torch]", "[troch]"), "101 did you mean `torch`?"),
    (GOOD + "minver = 2.12", '103 write it as "2.12"'),
    (GOOD + "src = 'a.cpp'", '103 write it as ["a.cpp"]'),
]  # fmt: skip
"""A file, and the number of a rule with a part of its message, or its hint."""


@pytest.mark.parametrize(("text", "said"), REFUSED)
def test_what_the_reference_refuses(text: str, said: str) -> None:
    number, _, words = said.partition(" ")
    told = [item for item in found_in(text) if item.rule == f"KCI{number}"]
    assert any(words in item.message or words == item.hint for item in told), found_in(text)


def test_all_errors_are_found_at_once_in_file_order() -> None:
    text = GOOD.replace('"ab"', '"A"').replace('["cuda"]', '["npu"]')
    text += f"scr = []\nminver = 2\n{COMPONENT}x = 1\n"
    places = [(4, 2), (4, 6), (1, 8), (3, 9), (1, 14)]
    assert [(item.rule, item.line) for item in found_in(text)] == [
        (f"KCI10{rule}", line) for rule, line in places
    ]
    many = found_in(GOOD + "src = [" + "1," * 10_000 + "]")
    assert (len(many), many[0].rule) == (MAX_PROBLEMS + 1, "KCI116"), "a long list is cut"


def test_a_build_has_what_the_file_says() -> None:
    for keys, expected in {
        "cuda_capabilities = ['9.0']\nrocm_archs = ['gfx942']": [],
        "cuda-capabilities = ['9.0']\nrocm-archs = ['gfx942']": ["KCI111", "KCI111"],
        "cuda-capabilities = []\ncuda_capabilities = []": ["KCI110"],
    }.items():
        assert ids(found_in(HEAD + "[torch-noarch]\n" + keys)) == expected
    noarch = kernel(HEAD + "[torch-noarch]\ncuda-capabilities = ['9.0']").build
    assert (noarch.framework_name, noarch.framework.archs("cuda")) == ("torch-noarch", ("9.0",))
    assert kernel(HEAD + "[tvm-ffi]\nsrc = []").build.framework_name == "tvm-ffi"

    undeclared = kernel(GOOD + 'stable-abi = { cuda = "2.11", xpu = "2.11" }')
    assert undeclared.diagnostics == ()
    assert str(undeclared.build.stable_abi("cuda")) == "2.11"

    bounds = kernel(HEAD + '[general.cuda]\nmaxver = "13"\n[torch]\nminver = "2.12.0"\n').build
    assert bounds.general.cuda
    assert bounds.torch
    assert (bounds.general.cuda.maxver, str(bounds.torch.minver)) == ((13,), "2.12.0")

    read = kernel(GOOD + 'pyext = ["py", "json", "pyi", "txt"]\n' + COMPONENT).build
    assert (read.name, read.framework_name) == ("ab", "torch")
    assert read.data_extensions == ("json", "txt")
    assert (list(read.components("cuda")), read.components("rocm")) == (["k"], {})
    assert isinstance(read.kernel["k"], CudaComponent)


# --- finding kernels ------------------------------------------------------------------------------


def make(directory: Path, text: str = GOOD) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "build.toml").write_text(text)


def test_kernels_below_a_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("b", "a", "group/c", ".hidden/d", "a/inner"):
        make(Path(name))
    assert find_kernels([]) == ["a", "b", "group/c"]
    assert find_kernels(["b/", "a/build.toml", "b"]) == ["a", "b"]
    assert [read.directory for read in open_workspace(["a", "b"]).kernels] == ["a", "b"]
    # the empty name of a variable that is not set once was the root of the file system
    for none in ("/no-such-place/build.toml", "", "x" * 5000, "a\0b"):
        error = failure(UsageError, "there is no such directory", find_kernels, [none])
        assert len(error.message) < 300


@pytest.mark.parametrize(
    ("kernel", "there", "found"),
    [
        ("k/src", ["k/tests"], "k/tests"),
        ("k/src", ["k/tests", "k/src/tests"], "k/src/tests"),
        ("k/src", [], "k/tests"),
        ("k/source", ["k/tests"], "k/source/tests"),
        ("src", ["src/.git", "tests"], "src/tests"),
    ],
)
def test_tests_lie_beside_build_toml_or_beside_the_src_that_has_it(
    kernel: str, there: list[str], found: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in (kernel, *there):
        (tmp_path / name).mkdir(parents=True, exist_ok=True)
    monkeypatch.chdir(tmp_path)
    assert companion(Path(kernel), "tests") == Path(found)
    monkeypatch.chdir(kernel)
    assert companion(Path(), "tests").resolve() == tmp_path / found


@pytest.mark.parametrize("in_git", [False, True])
def test_hidden_folders_and_kernels_inside_of_others_are_skipped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, no_git_environment: None, in_git: bool
) -> None:
    """`a-b` sorts between `a` and what lies in `a`."""
    monkeypatch.chdir(tmp_path)
    for name in ("a", "a-b", "a/c", ".hidden", ".cache/deep/b", "group/.old/c", "group/c.d"):
        make(Path(name))
    if in_git:
        subprocess.run(["git", "init", "--quiet"], check=True)
    assert find_kernels(["."]) == ["a", "a-b", "group/c.d"]
    assert find_kernels([str(tmp_path / "group")]) == [str(tmp_path / "group/c.d")]
    assert find_kernels([".hidden"]) == [".hidden"], "unless one is named"
