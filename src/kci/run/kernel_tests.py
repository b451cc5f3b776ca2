"""Runs a kernel's tests on its variants in the real loader, each in a fresh process, as the
reference's CI does.
"""

from __future__ import annotations

import enum
import hashlib
import os
import re
import shutil
import sys
import tempfile
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Annotated
from xml.etree import ElementTree

from msgspec import Meta

from kci.builders.process.run import Log, run, run_in_group, silent
from kci.builders.toolchains.data import toolchains
from kci.builders.toolchains.downloads import install, pip_install
from kci.builders.toolchains.environment import ensure_runtime
from kci.config.discovery import companion
from kci.config.facts import BACKENDS, HOST, depends_table, needs_device
from kci.config.values import python_name, text_of
from kci.errors import FindingsError, KciError, MissingToolError, UsageError, one_line
from kci.matrix.variants import Kind, VariantName, parse_variant_name, this_system
from kci.plan.inputs.kernel_inputs import MARKER
from kci.plan.workspace import Workspace
from kci.run.loader import LoaderEnvironment, load_alone, python_path, why_incompatible
from kci.tree.metadata import FILE_NAME, Metadata, read_metadata
from kci.utils.cache import make_once
from kci.utils.frozen import Frozen
from kci.utils.suggest import containing, suggestion

_NOTHING_SELECTED = 5
_PYTEST = Path(__file__).with_name("pytest_script.py")
_REPOSITORY = re.compile(r"""["']([A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*)["']""")


class TestState(enum.StrEnum):
    """The result of testing a variant."""

    __test__ = False  # for pytest

    PASSED = "passed"
    FAILED = "failed"
    NOTHING_RAN = "nothing ran"
    NOT_LOADED = "not loaded"
    NOT_RUN = "not run"
    """The machine lacks something."""
    OTHER_TORCH = "for another torch"
    """A full-ABI variant of another torch version."""


Text = Annotated[str, Meta(max_length=4000)]
Natural = Annotated[int, Meta(ge=0)]


class TestReport(Frozen):
    """The result of one variant."""

    __test__ = False  # for pytest

    kernel: Text
    variant: Text
    state: TestState
    passed: Natural = 0
    failed: Natural = 0
    skipped: Natural = 0
    output: Text = ""
    """The output of a failure."""


def select_variants(tree: Path, names: Sequence[str] = ()) -> list[Path]:
    """List variants to test: `names`, or all for this system; if there is none for it, all.

    Raises UsageError, FindingsError.
    """
    if (tree / FILE_NAME).is_file():
        return [tree]
    variants = {path.parent.name: path.parent for path in sorted(tree.glob(f"*/{FILE_NAME}"))}
    if not variants:
        raise FindingsError(
            f"there is no variant in {tree}", "build one: kci build --variant NAME, or kci run"
        )
    for name in names:
        if name not in variants:
            near = suggestion(name, list(variants)) or containing(name, variants)
            raise UsageError(
                f"{tree} has no variant {name!r}",
                near or f"it has {', '.join(sorted(variants)[:5])}",
            )
    systems = (None, this_system())
    here = [path for name, path in variants.items() if parse_variant_name(name).system in systems]
    return [variants[name] for name in names] or here or [*variants.values()]


def why_not_testable(name: str, environment: LoaderEnvironment | None) -> str:
    """The reason why a kernel's tests, which load it by name, cannot run on a variant in an
    environment, or with kci's CPU torch; empty if they can.
    """
    parts = parse_variant_name(name)
    needs = needs_device(parts.backend)
    if parts.system not in (None, this_system()):
        return f"needs a machine of {parts.system}"
    if environment and parts.backend == HOST != environment.backend:
        # the loader looks at torch's backend, not at the machine
        return (
            "needs a Python with torch for the CPU: in this one tests get the variant for "
            f"{environment.backend}"
        )
    known = environment and environment.backend == parts.backend
    if needs and not known and not has_device(parts.backend):
        return f"needs {BACKENDS[parts.backend].device}"
    if environment:
        return why_incompatible(parts, environment).removeprefix("it ")
    own = f"needs a Python with torch for {parts.backend}; kci's own is for the CPU"
    return own if needs else ""


def has_device(backend: str) -> bool:
    """True if files and programs indicate a device of a backend."""
    facts = BACKENDS[backend]
    if facts.device_program:
        return bool(shutil.which(facts.device_program[0]) and run(facts.device_program).code == 0)
    if facts.device_files:
        return any(Path("/dev").glob(facts.device_files))
    return facts.macos and sys.platform == "darwin"


def nothing_tested_error(
    reasons: Mapping[str, str], verified: Collection[str] = ()
) -> MissingToolError:
    """Make the error for a machine that can test nothing, with the reasons by variant."""
    lines = [
        f"{name}: built, {'verified, ' if name in verified else ''}not run: {why}"
        for name, why in reasons.items()
    ]
    shown = "\n".join(lines[:5]) + (f"\nand {len(lines) - 5} more" if len(lines) > 5 else "")
    hint = (
        "run `kci test --no-isolation` where there is one, in a Python with torch for it, kernels "
        "and pytest; "
        "`kci render --ci snakemake` does it on a cluster"
    )
    return MissingToolError(f"nothing was tested here: {shown}", hint)


def split_testable(
    variants: Sequence[Path], environment: LoaderEnvironment | None
) -> tuple[list[Path], dict[str, str]]:
    """The variants that can be tested, and the reasons why the others cannot, by name."""
    names = [path.name for path in variants]
    reasons = {name: why for name in names if (why := why_not_testable(name, environment))}
    return [path for path in variants if path.name not in reasons], reasons


def run_kernel_tests(
    variant_dir: Path,
    sources: Path | None,
    log: Log,
    *,
    cache: Path,
    torch: str | None = None,
    python: Path | None = None,
    keyword: str = "",
) -> TestReport:
    """Load a variant and run its kernel's tests, those that pytest's `-k` selects by a `keyword`.

    Without `sources`, the directory of build.toml, the variant is only loaded. It is loaded with
    kci's CPU torch, of minor version `torch` or the newest fitting one; `python` names an
    environment with torch, kernels and pytest instead.

    Raises FindingsError: not a variant. MissingToolError: no Python can load it, or a package is
    not installable.
    """
    metadata = read_metadata(variant_dir / FILE_NAME)
    name = parse_variant_name(variant_dir.name)
    report = partial(TestReport, metadata.name, variant_dir.name)
    minor = ".".join(torch.split(".")[:2]) if torch else None
    if name.kind is Kind.FULL and minor not in (None, name.framework_version):
        built = f"built for torch {name.framework_version}"
        message = f"{built}, whose full ABI torch {torch} does not have"
        return report(TestState.OTHER_TORCH, output=message)
    python, packages = loader_for(
        variant_dir, metadata, log, cache=cache, torch=torch, python=python
    )
    with tempfile.TemporaryDirectory(prefix="kci-test-") as made:
        folder = Path(made)
        log(f"loading {variant_dir.name}")
        loaded = load_alone(variant_dir, metadata, folder, python, packages)
        if loaded.error:
            return report(TestState.NOT_LOADED, output=loaded.output)
        tests = companion(sources, "tests") if sources else None
        if not tests or not tests.is_dir():
            where = "no tests directory" if sources else "no kernel to take tests from"
            return report(TestState.NOTHING_RAN, output=where)
        log(f"running the tests of {metadata.name} marked {MARKER}")
        # some tests import the package by its own name, so a variant directory gets it
        own, tree = folder / "packages", folder / "tree"
        own.mkdir()
        (own / python_name(metadata.name)).symlink_to(tree / variant_dir.name)
        results, place = folder / "report.xml", tests.parent.resolve()
        environment = _environment(tree, place, metadata) | python_path(own, packages)
        command = [str(python), "-c", _PYTEST.read_text(encoding="utf-8"), "tests", "-m", MARKER]
        command += ["-q", "-p", "no:cacheprovider", "-o", "verbosity_assertions=2"]
        command += ["-W", "ignore::pytest.PytestUnknownMarkWarning", f"--junitxml={results}"]
        command += ["-k", keyword] if keyword else []
        done = run_in_group(command, silent, cwd=place, env=environment)
        passed, failed, skipped = _counts(results)
        state = TestState.PASSED if passed and done.code == 0 else TestState.NOTHING_RAN
        # a test can end the process with 0
        if done.code not in (0, _NOTHING_SELECTED) or failed or not results.is_file():
            state = TestState.FAILED
        output = "" if state is TestState.PASSED else done.tail(3000, 1000)
        return report(state, passed, failed, skipped, output)


def loader_for(
    variant_dir: Path,
    metadata: Metadata,
    log: Log,
    *,
    cache: Path,
    torch: str | None,
    python: Path | None,
    flavour: str = HOST,
) -> tuple[Path, Path | None]:
    """A Python that can load a variant: `python`, or one of kci with a flavour of torch; and a
    folder with the packages that the variant declares.

    Raises MissingToolError.
    """
    if python:
        return python, None
    name = parse_variant_name(variant_dir.name)
    python = ensure_runtime(_torch(name, torch), cache=cache, log=log, flavour=flavour)
    known = (depends_table().lookup(each, name.backend) for each in metadata.python_depends)
    declared = [package.package for package in known if package]
    return python, _installed(declared, python, cache, log) if declared else None


def _installed(packages: Sequence[str], python: Path, cache: Path, log: Log) -> Path:
    what = ", ".join(packages)
    key = hashlib.sha256(os.fsencode("\n".join([str(python), *sorted(packages)]))).hexdigest()[:16]
    folder = cache / "test-packages" / key

    def make(place: Path) -> None:
        log(f"installing {what}, which the kernel declares")
        place.mkdir(parents=True, exist_ok=True)
        # what the environment has stays, torch above all; a .pth file is read in a site's
        # folder only
        there = python.parents[1].glob("lib/python*/site-packages/*.dist-info")
        names = "".join(f"{path.name.partition('-')[0]}\n" for path in there)
        (place / "there.txt").write_text(names, encoding="utf-8")
        options = ["--excludes", str(place / "there.txt"), "--target", str(place)]
        install([*pip_install(python), *options, "--", *packages], what, log, folder.parent)
        (place / "sitecustomize.py").write_text(_AS_SITE, encoding="utf-8")

    make_once(folder, folder.is_dir, make, log)
    return folder


_AS_SITE = "import os, site\n\nsite.addsitedir(os.path.dirname(__file__))\n"


def torch_of(workspace: Workspace | None, variant: str) -> str | None:
    """The torch that a variant is tested with: the newest that its kernel is built for; None if
    nothing says so.
    """
    with suppress(KciError):
        found = workspace.variant(variant) if workspace else None
        return (found.wheel or text_of(found.torch) or None) if found else None
    return None


def first_failure(reports: Sequence[TestReport], *, allow_empty: bool = False) -> str:
    """The first failed variant with a line of its output; empty without failures.

    `allow_empty` needs no tests.
    """
    fine = [TestState.PASSED, TestState.NOT_RUN, *([TestState.NOTHING_RAN] if allow_empty else [])]
    wrong = next((report for report in reports if report.state not in fine), None)
    if wrong is None:
        return ""
    lines = [line.strip() for line in wrong.output.splitlines() if line.strip()]
    errors = [line.removeprefix("E").strip() for line in lines if line.startswith("E ")]
    error_line = (errors or lines[-1:] or [""])[0]
    return one_line(f"{wrong.variant}: {wrong.state}: {error_line}")


def repositories(sources: Path, kernel: str) -> list[str]:
    """The repository names `<owner>/<kernel>` in the kernel's tests."""
    names = {f"kernels-community/{kernel}"}
    for path in sorted((sources / "tests").rglob("*.py")):
        text = path.read_text(encoding="utf-8", errors="replace")
        names |= {name for name in _REPOSITORY.findall(text) if name.partition("/")[2] == kernel}
    return sorted(names)


def _environment(tree: Path, sources: Path, metadata: Metadata) -> dict[str, str]:
    # offline, with the variant under the names that tests use
    environment = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("PYTEST_", "PYTHONPATH"))
    }
    environment |= {"HF_HUB_OFFLINE": "1", "PYTHONDONTWRITEBYTECODE": "1"}
    if metadata.kernel_depends:
        del environment["HF_HUB_OFFLINE"]
    names = repositories(sources, metadata.name)
    return environment | {"LOCAL_KERNELS": ":".join(f"{name}={tree}" for name in names)}


def _counts(report: Path) -> tuple[int, int, int]:
    # zeros without a report
    try:
        suite = ElementTree.parse(report).getroot().find("testsuite")  # noqa: S314  - written by pytest just now
    except (OSError, ElementTree.ParseError):
        suite = None
    values = {} if suite is None else suite.attrib
    tests, failures, errors, skipped = (
        int(values.get(key, "0")) for key in ("tests", "failures", "errors", "skipped")
    )
    return tests - failures - errors - skipped, failures + errors, skipped


def _torch(name: VariantName, torch: str | None) -> str:
    own = name.framework_version if name.kind is Kind.FULL else None
    return (
        torch or own or max(toolchains().torch, key=lambda item: tuple(map(int, item.split("."))))
    )
