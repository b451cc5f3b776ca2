"""What the project promises of itself: direction of imports, a wheel that is whole, modules of a
readable size.
"""

from __future__ import annotations

import ast
import itertools
import os
import re
import shutil
import subprocess
import sys
import tomllib
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from buildkit import only_these, program, write_tree
from checkout import checkout_files
from conftest import ROOT, ran
from outside_tools import allowed_skips
from own_wheel import installed_from_a_wheel, outside


def test_no_module_outgrows_a_reader() -> None:
    paths = (ROOT / "src").rglob("*.py")
    assert [path for path in paths if len(path.read_text("utf-8").splitlines()) > 500] == []


AGAINST_THE_FLOW = {
    "config": "from kci.matrix.variants import Kind",
    "matrix": "import kci.plan.legs",
    "builders": "import kci.tree.identity",
    "tree": "import kci.builders.request",
    "plan": "import kci.cli",
}


@pytest.mark.parametrize(
    ("planted", "refused"),
    [(AGAINST_THE_FLOW, {*AGAINST_THE_FLOW}), ({"tree": "import kci.plan.plan"}, set())],
    ids=["against", "along"],
)
def test_the_import_contract_fails_against_the_flow(
    tmp_path: Path, planted: dict[str, str], refused: set[str]
) -> None:
    shutil.copytree(ROOT / "src", tmp_path / "src", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    for room, statement in planted.items():
        file = tmp_path / "src" / "kci" / room / "planted.py"
        file.write_text(f'"""Planted."""\n\n{statement}\n')
    linter = Path(sys.executable).parent / "lint-imports"
    environment = {**os.environ, "PYTHONPATH": str(tmp_path / "src")}
    done = ran(linter, "--no-cache", cwd=tmp_path, env=environment)
    assert (done.returncode != 0) == bool(refused), done.stdout + done.stderr
    assert {room for room in planted if f"kci.{room}.planted" in done.stdout} == refused


def unused(requirements: list[str], *folders: str, beside: str = "") -> list[str]:
    """The requirements of which no folder has an import or a text that is a name, and `beside` no
    word: of a module, program or plugin of theirs.
    """
    used = set(re.findall(r"[\w-]+", beside))
    for file in (file for folder in folders for file in (ROOT / folder).rglob("*.py")):
        named = r'(?m)^ *(?:import|from) (\w+)|"([\w-]+)"'
        used |= {*itertools.chain(*re.findall(named, file.read_text(encoding="utf-8")))}
    found = []
    for wanted in map(Requirement, requirements):
        name = wanted.name
        if wanted.marker is None or wanted.marker.evaluate():
            files = [file for file in metadata.files(name) or () if "__pycache__" not in file.parts]
            brings = {file.parts[0] if file.parts[0] != ".." else file.name for file in files}
            brings = {one.removesuffix(".py").removesuffix("-stubs") for one in brings}
            brings |= {point.name for point in metadata.distribution(name).entry_points}
            if used.isdisjoint({*brings, name.rpartition("plugin-")[2]}):
                found.append(name)
    return found


def test_no_dependency_is_unused() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    dev, files = project["dependency-groups"]["dev"], ("Makefile", ".ci/run", "mkdocs.yml")
    config = "".join((ROOT / name).read_text(encoding="utf-8") for name in files)
    assert unused(project["project"]["dependencies"], "src/kci") == []
    assert unused(dev, "tests", "bin", "benchmarks", "src/kci", beside=config) == []
    assert unused(["hypothesis>=6", "click", "types-PyYAML"], "src/kci") == ["hypothesis"]


@pytest.mark.network
def test_the_wheel_alone_does_what_the_checkout_does(
    tmp_path: Path, shared_by_workers: Path
) -> None:
    """Built from a clean checkout, installed into an empty environment, run from elsewhere."""
    kci = installed_from_a_wheel(shared_by_workers)
    kernel = tmp_path / "repo" / "swiglu"
    ignored = shutil.ignore_patterns("build", "__pycache__")
    shutil.copytree(ROOT / "examples" / "swiglu", kernel, ignore=ignored)
    (tmp_path / "repo" / "kci.toml").write_text("[plan]\nload = []\n")

    def run(*command: str | Path, cwd: Path = tmp_path) -> str:
        return outside(*command, cwd=cwd, KCI_CACHE=str(tmp_path / "cache"))

    names = run(kci, "matrix", kernel, "--format", "names").split()
    assert names == ["torch-cpu", "torch-cuda", "torch-rocm"]
    run(kci, "render", kernel, "--output", tmp_path / "repo")
    assert "kci/build@v1" in (tmp_path / "repo" / ".github" / "workflows" / "kci.yml").read_text()
    assert run(kci, "run", kernel).count("built") == 3
    run(kci, "verify", kernel / "build")
    more = ("plan", "check", "explain", "catalog show", "compat coverage")
    for command in (*more, "build . --variant torch-cpu"):
        run(kci, *command.split(), cwd=kernel)
    assert "| variant |" in run(kci, "matrix", kernel, "--format", "markdown")


def test_no_test_sleeps_or_asserts_seconds() -> None:
    """A busy machine would fail it.

    Wait for a line, a file or a process; growth.py compares costs without a clock.
    """
    clock = re.compile(r"\b(sleep|perf_counter|monotonic|process_time|thread_time)(_ns)?\(")
    for file in sorted((ROOT / "tests").rglob("*.py")):
        if file.name != "growth.py":
            assert not clock.search(file.read_text(encoding="utf-8")), file


def test_nothing_is_binary_but_the_tables_of_exports() -> None:
    """A wheel that was downloaded into the checkout once landed with a commit of everything."""
    binary = [name for name in checkout_files() if b"\0" in (ROOT / name).read_bytes()]
    tables = [f"src/kci/tree/verify/data/{name}-exports.bin" for name in ("cuda", "torch")]
    assert sorted(binary) == tables


PYTEST = f"{sys.executable} -m pytest -q -n 0 -p no:cacheprovider -p no:randomly".split()
SKIPPED = {
    "tree/verify/test_verify_fatbin.py::test_device_code_that_is_absent_or_broken": "needs gcc",
    "builders/test_objects.py::test_nvcc": "there is no nvcc",
}


@pytest.mark.parametrize(("tools", "failed"), [("required", ["needs gcc"]), ("", [])])
def test_a_skip_that_nothing_allows_fails_where_all_is_required(
    tmp_path: Path, tools: str, failed: list[str]
) -> None:
    environment = {**os.environ, "PATH": str(tmp_path), "KCI_TEST_TOOLS": tools}
    done = ran(*PYTEST, "-rs", *(ROOT / "tests" / name for name in SKIPPED), env=environment)
    assert done.returncode == len(failed), done.stdout
    for reason in SKIPPED.values():
        assert f": {reason}" in done.stdout
        assert (f"skipped: {reason}" in done.stdout) is (reason in failed)


LEAVES = """
import os, subprocess, sys, tempfile
def test_it():
    tempfile.mkdtemp()
    code = "import tempfile; print(tempfile.mkdtemp())"
    made = subprocess.check_output([sys.executable, '-c', code], text=True)
    assert made.startswith(os.environ['TMPDIR'])
"""


def test_a_run_of_the_tests_leaves_no_temporary_files(tmp_path: Path) -> None:
    (tmp_path / "temporary").mkdir()
    here = write_tree(tmp_path / "tests", {"test_left.py": LEAVES})
    worker = [name for name in os.environ if name.startswith("PYTEST_XDIST")]
    environment = {name: os.environ[name] for name in os.environ.keys() - worker}
    environment |= {"TMPDIR": str(tmp_path / "temporary"), "PYTEST_DEBUG_TEMPROOT": str(tmp_path)}
    environment["PYTHONPATH"] = str(ROOT / "tests")
    words = (*PYTEST, "-p", "conftest", "-c", ROOT / "pyproject.toml", "--rootdir", here)
    done = ran(*words, here / "test_left.py", cwd=here, env=environment)
    assert done.returncode == 0, done.stdout + done.stderr
    assert not list((tmp_path / "temporary").iterdir())


def test_every_skip_that_is_allowed_is_there() -> None:
    reasons = {"no squeue, munged: apt-get install slurm-wlm munge"}
    for file in (ROOT / "tests").rglob("*.py"):
        for call in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(call, ast.Call) and ast.unparse(call.func).endswith((".skip", ".skipif")):
                given = (*(key.value for key in call.keywords), *call.args, None)[0]
                parts = given.values if isinstance(given, ast.JoinedStr) else [given]
                texts = (part.value if isinstance(part, ast.Constant) else "x" for part in parts)
                reasons.add("".join(map(str, texts)))  # what is put in is an x
    unused = [one.pattern for one in allowed_skips() if not any(map(one.fullmatch, reasons))]
    assert unused == []


@pytest.mark.parametrize(
    ("leaves", "code"), [("true", 0), ("touch oom", 1), ("echo x >> README.md", 1)]
)
def test_ci_ends_red_where_a_test_leaves_files_in_the_checkout(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, leaves: str, code: int
) -> None:
    repository = write_tree(tmp_path / "checkout", {"README.md": "", "mine.txt": "", ".ci/run": ""})
    shutil.copy(ROOT / ".ci" / "run", repository / ".ci" / "run")
    for command in (["init", "-q"], ["add", "README.md", ".ci"]):
        subprocess.run(["git", "-C", repository, *command], check=True)
    programs = only_these(monkeypatch, tmp_path, "bash", "git", "dirname", "touch")
    program(programs, "id", "echo 1000")
    program(programs, "make", f'if [ "$1" = test ]; then {leaves}; fi')
    done = ran("bash", repository / ".ci" / "run")
    assert done.returncode == code, done.stderr
    assert ("this run has left files in the checkout" in done.stderr) is bool(code)
