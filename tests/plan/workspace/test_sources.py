"""The rules about a kernel's sources are found before anything is built: by check, the plan of a
run, and kci build.
"""

from __future__ import annotations

import ast
import json
import shutil
from pathlib import Path

import pytest

from buildkit import write_tree
from cli.runner import kci
from conftest import failure, torch_toml, write_noarch
from kci import open_workspace, plan_run
from kci.config.reader import Kernel
from kci.config.sources import package_rules
from kci.config.sources.imports import PackageModule
from kci.diagnostics import Diagnostic
from kci.errors import FindingsError
from kci.matrix.catalog.rows import Catalog
from kci.plan import check
from kci.plan.check import check_kernels
from kci.plan.planning import PlanRequest
from kci.plan.workspace import Choice
from kci.run.local import outcomes_of
from kci.tree.verify import verify

ERRORS = {
    "KCI770": "def broken(:\n",
    "KCI771": "import numpy\n",
    "KCI772": "import torch\n\n\n@torch.library.custom_op('some::op', mutates_args=())\n"
    "def op(x):\n    return x\n",
    "KCI776": "from .gone import x\n",
    "KCI780": "import torch\n\n\ndef f(x):\n    return torch.ops.some_kernel.f(x)\n",
}


PACKAGE = "torch-ext/some_kernel"


def kernel(place: Path, text: str, backend: str = "cpu") -> Path:
    shutil.rmtree(place / PACKAGE, ignore_errors=True)
    return write_noarch(place, backends=(backend,), code=text)


def compiled(place: Path, files: dict[str, str], toml: str = "") -> Path:
    """A kernel of C++, whose sources are empty unless they are in `files`."""
    usual = {"build.toml": toml or COMPILED, "csrc/a.cpp": "", "csrc/table.h": ""}
    return write_tree(kernel(place, ""), usual | files)


def refusal_of(place: Path, says: str = "") -> FindingsError:
    workspace = open_workspace([place])
    return failure(FindingsError, f"nothing is planned{says}", plan_run, workspace, PlanRequest())


def not_planned(place: Path, name: str = "torch-cpu") -> list[str]:
    """The rules for which it is neither planned nor built."""
    rules = [item.rule for item in refusal_of(place).diagnostics]
    built = kci("build", place, "--variant", name, "--output", place / "out")
    assert built.code == 1
    assert f"error[{rules[0]}]" in built.stderr
    assert not (place / "out").exists()
    return rules


def planned(place: Path) -> None:
    assert plan_run(open_workspace([place]), PlanRequest()).plan.legs
    assert kci("build", place, "--variant", "torch-cpu", "--output", place / "out").code == 0


def sources_say(place: Path) -> list[str]:
    found = check_kernels([str(place)]).diagnostics
    told, again = (
        [item.rule for item in answer if item.rule.startswith("KCI7")]
        for answer in (found, verify(place))
    )
    assert told == again, "one answer"
    return told


@pytest.mark.parametrize(("rule", "text"), ERRORS.items())
def test_an_error_is_found_before_anything_is_built(tmp_path: Path, rule: str, text: str) -> None:
    place = kernel(tmp_path, text)
    assert sources_say(place) == not_planned(place) == [rule]
    failure(FindingsError, "nothing is planned", outcomes_of, open_workspace([place]), Choice())


def test_a_warning_is_said_and_stops_nothing(tmp_path: Path) -> None:
    place = kernel(tmp_path, "def f():\n    import numpy\n")
    assert sources_say(place) == ["KCI773"]
    planned(place)


POINTER = f"version https://git-lfs.github.com/spec/v1\noid sha256:{'4d' * 32}\nsize 12345678\n"
COMPILED = torch_toml({"cpu": "csrc/a.cpp"}, binding="csrc/table.h")


@pytest.mark.rule("KCI732", triggers=True)
@pytest.mark.parametrize(
    "file", [f"{PACKAGE}/table.bin", f"{PACKAGE}/deep/er.py", "csrc/a.cpp", "csrc/table.h"]
)
def test_a_pointer_of_git_lfs_is_no_source(tmp_path: Path, file: str) -> None:
    own = file.startswith("csrc")
    files = {file: POINTER}
    place = compiled(tmp_path, files) if own else write_tree(kernel(tmp_path, ""), files)
    assert "KCI732" in sources_say(place)
    refusal_of(place, f": .*{Path(file).name}: it is a pointer")
    assert "KCI732" in not_planned(place, "torch213-cxx11-cpu-x86_64-linux" if own else "torch-cpu")


@pytest.mark.rule("KCI732", triggers=False)
def test_a_file_that_speaks_of_git_lfs_is_one(tmp_path: Path) -> None:
    notes = {f"{PACKAGE}/notes.txt": f"A pointer is:\n{POINTER}"}
    assert sources_say(write_tree(kernel(tmp_path, ""), notes)) == []


@pytest.mark.rule("KCI708", triggers=True)
@pytest.mark.parametrize("names", [("aux.py",), ("what?.txt",), ("Scale.py", "scale.py")])
def test_a_name_that_another_system_cannot_hold_is_found_before_the_build(
    tmp_path: Path, names: tuple[str, ...]
) -> None:
    place = write_tree(kernel(tmp_path, ""), {f"{PACKAGE}/{name}": "" for name in names})
    assert sources_say(place) == ["KCI708"]


def test_what_a_build_generates_and_what_is_suppressed_is_no_finding(tmp_path: Path) -> None:
    place = kernel(tmp_path, "from ._ops import ops, add_op_namespace_prefix\n")
    assert sources_say(place) == []
    ignored = '[[lint.ignore]]\nrule = "KCI771"\npath = "torch-ext/*"\nreason = "they have it"\n'
    write_tree(kernel(place, "import numpy\n"), {"kci.toml": ignored})
    assert sources_say(place) == []
    planned(place)


def test_a_file_is_parsed_once_per_change(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place, kept = kernel(tmp_path / "kernel", "import numpy\n"), tmp_path / "kept"
    parsed: list[str] = []
    judged = package_rules.read_module

    def counted(name: str, tree: ast.Module) -> PackageModule:
        parsed.append(name)
        return judged(name, tree)

    monkeypatch.setattr(package_rules, "read_module", counted)
    first = check_kernels([str(place)], remember=kept)
    assert check_kernels([str(place)], remember=kept) == first
    assert parsed == ["__init__.py"]
    kernel(place, "import scipy\n")
    answer = check_kernels([str(place)], remember=kept).diagnostics
    (found,) = (item for item in answer if item.rule == "KCI771")
    assert "scipy" in found.message
    assert parsed == ["__init__.py"] * 2
    for file in kept.iterdir():
        file.write_bytes(b"\xc1 damaged")
    assert check_kernels([str(place)], remember=kept).diagnostics == answer


def test_a_tpu_brings_jax_and_the_same_files_are_asked_again(tmp_path: Path) -> None:
    text = "import jax\nfrom torch_tpu._internal.pallas import jax_op\n"
    for backend, count in (("cuda", 2), ("tpu", 0)):
        place = kernel(tmp_path / "kernel", text, backend)
        found = check_kernels([str(place)], remember=tmp_path / "kept").diagnostics
        assert [item.rule for item in found].count("KCI771") == count


LIBRARY = "TORCH_LIBRARY_EXPAND(TORCH_EXTENSION_NAME, ops) {}\n"


@pytest.mark.rule("KCI782", triggers=True)
@pytest.mark.parametrize("second", [LIBRARY, f"#if 1\n#endif\nSTABLE_{LIBRARY}"])
def test_two_libraries_of_one_variant(tmp_path: Path, second: str) -> None:
    place = compiled(tmp_path, {"csrc/a.cpp": LIBRARY, "csrc/table.h": second})
    assert sources_say(place) == ["KCI782"]


@pytest.mark.rule("KCI782", triggers=False)
def test_one_library_of_a_variant(tmp_path: Path) -> None:
    fragment = LIBRARY.replace("_EXPAND", "_FRAGMENT")
    for second in ("", f"// {LIBRARY}", f"#if 0\n{LIBRARY}#endif\n", fragment):
        place = compiled(tmp_path, {"csrc/a.cpp": LIBRARY, "csrc/table.h": second})
        assert sources_say(place) == [], second
    toml = torch_toml({"cpu": "csrc/a.cpp", "cuda": "csrc/b.cu"}, binding="csrc/table.h")
    files = {"csrc/a.cpp": LIBRARY, "csrc/b.cu": LIBRARY}
    assert "KCI782" not in sources_say(compiled(tmp_path, files, toml)), "a backend has its own"


def test_a_plan_judges_changed_texts_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    flagged = COMPILED.replace("csrc/table.h", "csrc/a.cpp") + 'cxx-flags = ["-mavx2"]\n'
    place, linted = compiled(tmp_path / "kernel", {}, flagged), []
    judged = check.lint_matrix

    def counted(kernel: Kernel, catalog: Catalog, *, errors_only: bool = False) -> list[Diagnostic]:
        linted.append(kernel.build.name)
        return judged(kernel, catalog, errors_only=errors_only)

    def refused(catalog: str | None = None) -> bool:
        run = PlanRequest(digests=tmp_path / "kept", allow_empty=True)
        try:
            return not plan_run(open_workspace([place], catalog=catalog), run).plan.legs
        except FindingsError as error:
            return [item.rule for item in error.diagnostics] == ["KCI169"]

    monkeypatch.setattr(check, "lint_matrix", counted)
    assert [refused(), refused(), len(linted)] == [True, True, 1]
    (place / "kci.toml").write_text('[[overlay]]\ndrop = ["system ~ aarch64-*"]\n')
    assert [refused(), refused(), len(linted)] == [False, False, 2]
    assert [refused("2026-08-20"), len(linted)] == [False, 3]
    (place / "kci.toml").unlink()
    assert [refused(), len(linted)] == [True, 4]
    (place / "build.toml").write_text(flagged.replace("-mavx2", "-O3"))
    assert [refused(), len(linted)] == [False, 5]


def test_check_and_plan_refuse_the_same_kernels(tmp_path: Path) -> None:
    """Workflow files are written all the same: they name the kernel, and its plan is red."""
    place = kernel(tmp_path, ERRORS["KCI770"])
    for words in (["check", place], ["plan", place]):
        done = kci(*words)
        assert (done.code, "KCI770" in done.stderr) == (1, True), done
    assert kci("render", place, "--output", tmp_path).code == 0
    answer = json.loads(kci("plan", place, "--format", "json").stdout)
    assert (answer["legs"], [item["path"] for item in answer["faulty"]]) == ([], [str(place)])


@pytest.mark.rule("KCI732", triggers=True)
def test_a_pointer_in_a_built_variant_is_neither_packed_nor_verified(tmp_path: Path) -> None:
    place = kernel(tmp_path / "k", "")
    assert kci("build", place, "--variant", "torch-cpu", "--output", tmp_path / "out").code == 0
    (tmp_path / "out" / "torch-cpu" / "table.bin").write_text(POINTER)
    assert "error[KCI732]" in kci("verify", tmp_path / "out" / "torch-cpu").stderr
    words = ("--kernel", place, "--output", tmp_path / "a.tar")
    done = kci("pack", tmp_path / "out" / "torch-cpu", *words)
    assert done.code in (1, 2), done.stderr
    assert not (tmp_path / "a.tar").exists()


def test_a_source_in_a_submodule_that_is_not_there_says_so(tmp_path: Path) -> None:
    toml = COMPILED.replace('"csrc/a.cpp"', '"third_party/up/a.cpp", "csrc/gone.cpp"')
    place = compiled(tmp_path / "repo" / "k", {}, toml)
    (tmp_path / "repo" / ".git").mkdir()
    module = '[submodule "up"]\n\tpath = k/third_party/up\n\turl = x\n'
    (tmp_path / "repo" / ".gitmodules").write_text(module)
    hints = [item.hint for item in check_kernels([str(place)]).diagnostics if item.rule == "KCI136"]
    assert [("git submodule update" in hint) for hint in hints] == [True, False]
    assert "k/third_party/up" in hints[0]


def test_a_kernel_without_its_package_is_not_planned_either(tmp_path: Path) -> None:
    place = kernel(tmp_path, "")
    (place / "torch-ext" / "some_kernel" / "__init__.py").unlink()
    (found,) = check_kernels([str(place)]).diagnostics[-1:]
    assert (found.rule, found.path, found.line) == ("KCI774", str(place / "build.toml"), 2)
    failure(FindingsError, "nothing is planned", plan_run, open_workspace([place]), PlanRequest())
