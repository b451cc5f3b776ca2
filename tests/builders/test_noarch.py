"""The noarch builder, and which files of a package go into a variant."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest

from buildkit import (
    CPU,
    build_of,
    copy_kernel,
    files_in,
    noarch_kernel,
    output_of,
    quiet,
    request,
    variant,
    write_tree,
)
from conftest import failure
from kci.builders import build_variant
from kci.builders.dispatch import build_noarch
from kci.builders.kernel_files import package_files
from kci.errors import BuildFailedError, FindingsError, UnsafeError, UsageError


def built(kernel: Path, tmp_path: Path, name: str = "torch-cuda", **options: object) -> Path:
    asked = request(kernel, name, tmp_path, variant=variant(name, archs=("9.0", "8.0")), **options)
    made = build_variant(asked, quiet)
    assert made.builder == "noarch"
    assert made.archs == ("9.0", "8.0")
    assert not made.sealed
    return asked.output


@pytest.mark.rule("KCI504", "KCI505", "KCI507", triggers=False)
def test_everything_but_bytecode_is_copied(tmp_path: Path) -> None:
    kernel = noarch_kernel(tmp_path / "k")
    taken = ("types.pyi", "data/table.bin", "data/metadata.json")
    others = ("__pycache__/a.cpython-311.pyc", "old.pyc", "metadata.json", "_ops.py")
    write_tree(kernel / "torch-ext/just_python", dict.fromkeys((*taken, *others), "left over"))
    output = built(kernel, tmp_path)
    assert files_in(output) == sorted(["__init__.py", "_ops.py", *taken])
    assert "left over" not in (output / "_ops.py").read_text()


def test_modes_do_not_depend_on_the_checkout(tmp_path: Path) -> None:
    kernel = noarch_kernel(tmp_path / "k")
    (kernel / "torch-ext/just_python/__init__.py").chmod(0o700)
    output = built(kernel, tmp_path)
    assert {path.stat().st_mode & 0o777 for path in output.rglob("*")} == {0o644}
    assert output.stat().st_mode & 0o777 == 0o755


@pytest.mark.rule("KCI501", "KCI503", triggers=False)
def test_a_link_inside_the_kernel_is_followed(tmp_path: Path) -> None:
    kernel = write_tree(noarch_kernel(tmp_path / "k"), {"common/shared.py": "VALUE = 1\n"})
    (kernel / "torch-ext/just_python/shared.py").symlink_to("../../common/shared.py")
    copied = built(kernel, tmp_path) / "shared.py"
    assert copied.read_text() == "VALUE = 1\n"
    assert not copied.is_symlink()


@pytest.mark.rule("KCI503", triggers=True)
@pytest.mark.parametrize("target", ["../../../outside.py", "/etc/hostname", "../../.."])
def test_a_link_out_of_the_kernel_is_refused(tmp_path: Path, target: str) -> None:
    kernel = noarch_kernel(tmp_path / "k")
    write_tree(tmp_path, {"outside.py": "secret"})
    (kernel / "torch-ext/just_python/leak.py").symlink_to(target)
    failure(UnsafeError, r"leak\.py", built, kernel, tmp_path)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    "what", ["a package behind a link out of the kernel", "an endless link", "a pipe"]
)
def test_what_is_no_file_is_refused_and_not_read(tmp_path: Path, what: str) -> None:
    kernel = noarch_kernel(tmp_path / "k")
    package = kernel / "torch-ext/just_python"
    match what.rsplit(maxsplit=1)[-1]:
        case "kernel":
            package.rename(tmp_path / "elsewhere")
            package.symlink_to("../../elsewhere")
        case "link":
            (package / "just_python_again").symlink_to(".")
        case _:
            os.mkfifo(package / "just_python_pipe.py")
    failure(UnsafeError, "just_python", built, kernel, tmp_path)


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


def test_the_noarch_builder_refuses_compiled_variants(tmp_path: Path) -> None:
    asked = request(copy_kernel("plus-one", tmp_path), CPU, tmp_path)
    failure(UsageError, "compiled", build_noarch, asked, quiet)


def test_an_unknown_builder_is_named(tmp_path: Path) -> None:
    failure(UsageError, "'magic'", built, noarch_kernel(tmp_path / "k"), tmp_path, builder="magic")


@pytest.mark.parametrize("made", ["_#cpu_1a", "#cuda_1a", "_#cuda_", "_#cuda_1-2", '_#cuda_x"\nx'])
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
    some, every = (
        [*package_files(kernel, build_of(kernel), compiled=only)] for only in (True, False)
    )
    assert some == ["__init__.py", "deep/__init__.py", "deep/steps.json"]
    assert {"__init__.pyi", "notes.txt"} <= {*every}
