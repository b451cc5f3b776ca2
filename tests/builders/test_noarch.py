"""The noarch builder, and which files of a package go into a variant."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from buildkit import (
    CPU,
    copy_kernel,
    files_in,
    noarch_kernel,
    output_of,
    quiet,
    request,
    variant,
    with_changes,
    write_tree,
)
from conftest import failure, torch_toml
from kci.builders.dispatch import build_noarch, build_variant
from kci.builders.kernel_files import VisibleFiles, package_files, write_package
from kci.builders.request import Request
from kci.config.reader import read_kernel
from kci.errors import BuildFailedError, FindingsError, UnsafeError, UsageError
from kci.plan.inputs.kernel_inputs import KernelInputs
from kci.plan.inputs.source_tree import SourceTree
from outside_tools import program


def built(kernel: Path, tmp_path: Path, name: str = "torch-cuda", **options: object) -> Path:
    asked = request(kernel, name, tmp_path, variant=variant(name, archs=("9.0", "8.0")), **options)
    made = build_variant(asked, quiet)
    assert made.builder == "noarch"
    assert made.archs == ("9.0", "8.0")
    assert not made.sealed
    return asked.output


@pytest.mark.rule("KCI501", "KCI503", "KCI504", "KCI505", "KCI507", triggers=False)
def test_everything_but_bytecode_is_copied(tmp_path: Path) -> None:
    """A link inside the kernel is followed, and modes do not depend on the checkout."""
    kernel = write_tree(noarch_kernel(tmp_path / "k"), {"common/shared.py": "VALUE = 1\n"})
    taken = ("types.pyi", "data/table.bin", "data/metadata.json")
    others = ("__pycache__/a.cpython-311.pyc", "old.pyc", "metadata.json", "_ops.py")
    package = write_tree(kernel / "torch-ext/just_python", dict.fromkeys((*taken, *others), "left"))
    (package / "shared.py").symlink_to("../../common/shared.py")
    (package / "__init__.py").chmod(0o700)
    output = built(kernel, tmp_path)
    assert files_in(output) == sorted(["__init__.py", "_ops.py", "shared.py", *taken])
    assert "left" not in (output / "_ops.py").read_text()
    assert (output / "shared.py").read_text() == "VALUE = 1\n"
    assert not (output / "shared.py").is_symlink()
    modes = {oct(path.stat().st_mode) for path in output.rglob("*") if path.is_file()}
    assert (modes, oct(output.stat().st_mode)) == ({"0o100644"}, "0o40755")


@pytest.mark.rule("KCI503", triggers=True)
@pytest.mark.parametrize(
    "target", ["../../../outside.py", "/etc/hostname", "../../..", ".", "a package", "a pipe"]
)
def test_what_leads_out_of_the_kernel_or_is_no_file_is_refused(tmp_path: Path, target: str) -> None:
    """A link, even to a folder of the kernel, which can be endless."""
    kernel = noarch_kernel(tmp_path / "k")
    write_tree(tmp_path, {"outside.py": "secret"})
    package = kernel / "torch-ext/just_python"
    match target:
        case "a package":
            package.rename(tmp_path / "elsewhere")
            package.symlink_to("../../elsewhere")
        case "a pipe":
            os.mkfifo(package / "just_python_pipe.py")
        case _:
            (package / "leak.py").symlink_to(target)
    says = "just_python" if target.startswith("a ") else r"leak\.py"
    failure(UnsafeError, says, built, kernel, tmp_path)
    assert not (tmp_path / "out").exists()


@pytest.mark.rule("KCI501", triggers=True)
@pytest.mark.parametrize("target", ["nothing.py", "dangling.py"])
def test_a_link_to_nothing_is_named(tmp_path: Path, target: str) -> None:
    kernel = noarch_kernel(tmp_path / "k")
    (kernel / "torch-ext/just_python/dangling.py").symlink_to(target)
    caught = failure(FindingsError, r"dangling\.py", built, kernel, tmp_path)
    assert caught.diagnostics[0].rule == "KCI501"


@pytest.mark.rule("KCI504", triggers=True)
def test_a_missing_package_is_named(tmp_path: Path) -> None:
    kernel = noarch_kernel(tmp_path / "k")
    (kernel / "torch-ext/just_python/__init__.py").unlink()
    caught = failure(FindingsError, r"no __init__\.py", built, kernel, tmp_path)
    (found,) = caught.diagnostics
    assert (found.rule, found.path) == ("KCI504", f"{kernel}/torch-ext/just_python")
    (kernel / "torch-ext/just_python").rmdir()
    failure(FindingsError, "torch-ext/just_python/ does not exist", built, kernel, tmp_path)


@pytest.mark.rule("KCI505", triggers=True)
@pytest.mark.parametrize("entry", ["just_python/__init__.py", "just_python"])
def test_a_package_with_an_entry_of_its_own_name_is_refused(tmp_path: Path, entry: str) -> None:
    kernel = write_tree(noarch_kernel(tmp_path / "k"), {f"torch-ext/just_python/{entry}": ""})
    caught = failure(FindingsError, "just_python", built, kernel, tmp_path)
    assert caught.diagnostics[0].rule == "KCI505"


@pytest.mark.rule("KCI507", triggers=True)
def test_a_compiled_framework_without_a_component_is_explained(tmp_path: Path) -> None:
    kernel = copy_kernel("plus-one", tmp_path)
    for builder in ("noarch", "native"):
        asked = request(kernel, "torch-cuda", tmp_path, builder=builder)
        caught = failure(BuildFailedError, "torch-cuda", build_variant, asked, quiet)
        assert "[kernel.<label>]" in caught.hint


def test_a_builder_that_does_not_fit_is_named(tmp_path: Path) -> None:
    asked = request(copy_kernel("plus-one", tmp_path), CPU, tmp_path)
    failure(UsageError, "compiled", build_noarch, asked, quiet)
    failure(UsageError, "'magic'", built, noarch_kernel(tmp_path / "k"), tmp_path, builder="magic")


@pytest.mark.parametrize("made", ["_#cuda_1-2", '_#cuda_x"\nx', "_#cuda_é"])
def test_an_id_that_does_not_fit_never_reaches_generated_code(tmp_path: Path, made: str) -> None:
    kernel, given = noarch_kernel(tmp_path / "k"), made.replace("#", "just_python_")
    asked = request(kernel, "torch-cuda", tmp_path, kernel_id=given)
    failure(BuildFailedError, "id", build_variant, asked, quiet)


# A torch that says which backend it has, in the words of each backend. Earlier ones win
# (docs/format.md#ops).
FAKE_TORCH = """
class ops: pass
class _Ops:
    def __getattr__(self, name): return name
ops = _Ops()
class version:
    cuda = {cuda!r}
    hip = {hip!r}
    {xpu}
class _Mps:
    def is_available(self): return {mps}
class backends:
    mps = _Mps()
    {tpu}
{neuron}
"""
FACTS: list[tuple[str, str, object, object]] = [
    ("tpu", "tpu", "tpu = 1", ""),
    ("neuron", "neuron", "neuron = 1", ""),
    ("cuda", "cuda", "13.0", None),
    ("rocm", "hip", "7", None),
    ("metal", "mps", True, False),
    ("xpu", "xpu", "xpu = '1'", ""),
]
"""A backend, and what torch says where it has it, and where not."""
BACKENDS = [*(backend for backend, *_ in FACTS), "cpu"]


@pytest.mark.parametrize("backend", BACKENDS)
def test_the_generated_ops_detect_the_backend_at_import(tmp_path: Path, backend: str) -> None:
    """Of all that torch has, the first."""
    output = built(noarch_kernel(tmp_path / "k"), tmp_path)
    first = BACKENDS.index(backend)
    facts = {
        name: here if number >= first else none
        for number, (_, name, here, none) in enumerate(FACTS)
    }
    fake = write_tree(tmp_path / "fake", {"torch.py": FAKE_TORCH.format(**facts)})
    code = "import json, _ops; print(json.dumps([_ops.ops, _ops.add_op_namespace_prefix('fwd')]))"
    environment = {**os.environ, "PYTHONPATH": f"{fake}:{output}"}
    namespace = f"_just_python_{backend}_1a2b3c4"
    told = json.loads(output_of(sys.executable, "-c", code, env=environment))
    assert told == [namespace, f"{namespace}::fwd"]


def test_compiled_variants_install_python_and_data_files_only(tmp_path: Path) -> None:
    kernel = copy_kernel("plus-one", tmp_path)
    what = request(kernel, CPU, tmp_path)
    some, every = ([*package_files(what, compiled=only)] for only in (True, False))
    assert some == ["__init__.py", "deep/__init__.py", "deep/steps.json"]
    assert {"__init__.pyi", "notes.txt"} <= {*every}


# --- a build sees the listed files and no others ---

SOURCES = {"cpu": "csrc/a.cpp", "cuda": 'csrc/b.cu", "csrc/b.h'}
BUILD = torch_toml(SOURCES, "some", "torch-ext/bind.cpp")
FILES = {
    "common/scale.h": "#define SCALE 2\n",
    "k/build.toml": BUILD,
    "k/torch-ext/bind.cpp": "",
    "k/torch-ext/some/__init__.py": "",
    "k/csrc/a.cpp": '#include "b.h"\nint f() { return B; }\nconst char* at = __FILE__;\n',
    "k/csrc/b.h": '#include "../../common/scale.h"\n#define B SCALE\n',
    "k/csrc/b.cu": "",
    "k/csrc/stray.h": "",
}


def asked(root: Path, extra: tuple[str, ...] = ("common",), **files: str) -> Request:
    """A request for the kernel `k` in a repository."""
    write_tree(root, FILES | files)
    inputs = KernelInputs(read_kernel(root / "k").build, root / "k", SourceTree(root), extra)
    return with_changes(request(root / "k", CPU, root), inputs=inputs)


def laid_out(what: Request, work: Path) -> set[str]:
    work.mkdir(exist_ok=True)
    VisibleFiles(what).lay_out(work)
    return set(files_in(work / "tree"))


def test_it_sees_its_own_sources_all_headers_the_package_and_what_is_declared(
    tmp_path: Path,
) -> None:
    seen = set(FILES) - {"k/build.toml", "k/csrc/b.cu", "k/csrc/stray.h"}
    assert laid_out(asked(tmp_path), tmp_path / "work") == seen
    what = asked(tmp_path, **{"k/build.toml": BUILD.replace(', "csrc/b.h"', "")})
    assert laid_out(what, tmp_path / "work") == seen - {"k/csrc/b.h"}, "no longer listed"


def compiled(work: Path) -> subprocess.CompletedProcess[str]:
    command = [program("g++"), "-MD", "-c", "kernel/csrc/a.cpp", "-o", "a.o"]
    return subprocess.run(command, cwd=work, capture_output=True, text=True, check=False)


def test_a_compiler_finds_the_listed_files_and_names_them_as_ever(tmp_path: Path) -> None:
    laid_out(asked(tmp_path), tmp_path / "work")
    done = compiled(tmp_path / "work")
    assert done.returncode == 0, done.stderr
    read = (tmp_path / "work/a.d").read_text().replace("\\\n", " ").split()[1:]
    own = [path.removeprefix("kernel/csrc/") for path in read if not path.startswith("/")]
    assert own == ["a.cpp", "b.h", "../../common/scale.h"]
    assert b"kernel/csrc/a.cpp\0" in (tmp_path / "work/a.o").read_bytes()


@pytest.mark.parametrize(
    ("extra", "text", "missed"),
    [
        ((), '#include "b.h"\n', "../../common/scale.h"),
        (("common",), '#include "stray.h"\n', "stray.h"),
    ],
)
def test_it_does_not_find_the_others(
    tmp_path: Path, extra: tuple[str, ...], text: str, missed: str
) -> None:
    laid_out(asked(tmp_path, extra, **{"k/csrc/a.cpp": text}), tmp_path / "work")
    done = compiled(tmp_path / "work")
    assert f"fatal error: {missed}: No such file" in done.stderr


@pytest.mark.rule("KCI511", triggers=True)
@pytest.mark.parametrize(
    "change", [lambda path: path.write_text("int x;\n"), Path.unlink], ids=["other", "gone"]
)
@pytest.mark.parametrize("way", ["laid out", "in place"])
def test_a_file_that_changes_meanwhile_is_noticed(
    tmp_path: Path, change: Callable[[Path], object], way: str
) -> None:
    visible, work = VisibleFiles(asked(tmp_path)), tmp_path / "work"
    visible.lay_out(work)
    visible.require_unchanged()
    change(tmp_path / "k/csrc/a.cpp")
    as_it_was = FILES["k/csrc/a.cpp"]
    assert (work / "kernel/csrc/a.cpp").read_text() == as_it_was, "what is compiled stays"
    with pytest.raises(BuildFailedError, match=r"csrc/a.cpp changed while"):
        visible.lay_out(work) if way == "laid out" else visible.require_unchanged()


def test_a_package_file_that_is_new_or_edited_is_not_carried(tmp_path: Path) -> None:
    visible = VisibleFiles(asked(tmp_path))
    for name, text in (("new.py", ""), ("__init__.py", "edited = 1\n")):
        path = write_tree(tmp_path / "k/torch-ext/some", {name: text}) / name
        says, given = f"{name} changed while", (tmp_path / "out", {name: path}, "", visible)
        failure(BuildFailedError, says, write_package, *given)
