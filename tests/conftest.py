"""What every test may use: reading a build.toml from text, and where the project's own
files are.
"""

from __future__ import annotations

import gc
import importlib.util
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from pathlib import Path
from textwrap import dedent
from types import ModuleType
from typing import TYPE_CHECKING, Any, TypeVar

import pytest
import yaml
from hypothesis import HealthCheck, settings

from forked import LOADED_IN_TESTS, only_loading
from kci import diagnostics
from kci.config.reader import Kernel, parse_kernel, read_kernel
from kci.config.values import python_name
from kci.diagnostics import Diagnostic
from kci.errors import FindingsError
from kci.matrix import selection
from kci.matrix.catalog.loading import load_catalog
from kci.matrix.catalog.rows import Catalog
from kci.matrix.variants import DroppedCandidate
from kci.plan import github_limits, legs
from kci.plan.plan import UnplannedVariant
from kci.run import load_built
from kci.utils.cache import default_cache
from outside_tools import HELD_TO, judge_skip

if TYPE_CHECKING:
    from buildkit import Bare

ROOT = Path(__file__).resolve().parent.parent
AT_TOP = ("SHA256SUMS", "kci-manifest.json")
"""What a merged tree has at its top besides variants."""


# How long an example takes says more about the machine than about kci. `make test` has hypothesis's
# own profile `ci`.
settings.register_profile("busy", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("busy")


def many(count: int) -> int:
    """So many examples in `make test`, and a third where they are others each time."""
    return count if settings.default.derandomize else count // 3  # type: ignore[union-attr]


def add_package(directory: Path) -> Path:
    """Write the Python package, empty, that the build.toml of a kernel directory asks for."""
    build = read_kernel(directory).build
    place = (
        directory
        / ("tvm-ffi-ext" if build.tvm_ffi is not None else "torch-ext")
        / python_name(build.name)
    )
    place.mkdir(parents=True, exist_ok=True)
    (place / "__init__.py").touch()
    return directory


def write_noarch(
    directory: Path,
    name: str = "some-kernel",
    backends: Sequence[str] = ("cpu",),
    general: str = "",
    code: str = "",
) -> Path:
    """Write a kernel of Python only; `general` is more of that table."""
    listed = ", ".join(f'"{backend}"' for backend in backends)
    package = directory / "torch-ext" / name.replace("-", "_")
    package.mkdir(parents=True)
    (package / "__init__.py").write_text(code)
    head = (
        f'[general]\nname = "{name}"\nversion = 1\nedition = 5\nlicense = "MIT"\n'
        f"backends = [{listed}]\n"
    )
    (directory / "build.toml").write_text(f"{head}{general}[torch-noarch]\n")
    return directory


def kernel(text: str) -> Kernel:
    """Read a build.toml from text."""
    return parse_kernel(dedent(text).encode())


def refusal(call: Callable[..., object], *given: Any, **named: Any) -> list[Diagnostic]:
    """The findings with which a call is refused."""
    with pytest.raises(FindingsError) as caught:
        call(*given, **named)
    return list(caught.value.diagnostics)


Failure = TypeVar("Failure", bound=BaseException)


def failure(
    kind: type[Failure], says: str, call: Callable[..., object], /, *given: Any, **keys: Any
) -> Failure:
    """The error with which a call ends; `says` is a pattern that is in its message."""
    try:
        call(*given, **keys)
    except kind as error:
        if re.search(says, str(error)):
            return error.with_traceback(None)  # it holds frames, and with them sockets
        pytest.fail(f"{says!r} is not in {str(error)!r}")
    pytest.fail(f"no {kind.__name__}")


def ran(*command: str | Path, cwd: Path = ROOT, **how: Any) -> subprocess.CompletedProcess[str]:
    """A program from beginning to end, however that is."""
    pipe = subprocess.PIPE
    usual = {"stdout": pipe, "stderr": pipe, "text": True}
    return subprocess.run(command, cwd=cwd, check=False, **usual | how)


def only(found: Sequence[Diagnostic], rule: str, *said: str) -> Diagnostic:
    """The one finding: it is of this rule, and its message has these words."""
    (item,) = found
    assert (item.rule, [word for word in said if word not in item.message]) == (rule, []), item
    return item


def ids(found: Sequence[Diagnostic]) -> list[str]:
    """The rules of findings."""
    return [item.rule for item in found]


def torch_kernel(
    backends: list[str], *, torch: str = "", general: str = "", components: str = ""
) -> Kernel:
    """A `[torch]` kernel with one component per backend, unless `components` says otherwise."""
    parts = components or "".join(
        f'[kernel.{backend}_part]\nbackend = "{backend}"\ndepends = ["torch"]\nsrc = ["a.cu"]\n'
        for backend in backends
    )
    declared = ", ".join(f'"{backend}"' for backend in backends)
    return parse_kernel(
        '[general]\nname = "some-kernel"\nversion = 1\nedition = 5\nlicense = "MIT"\n'
        f"backends = [{declared}]\n"
        f"{dedent(general)}\n[torch]\nsrc = []\n{dedent(torch)}\n{dedent(parts)}".encode()
    )


def torch_toml(
    sources: Mapping[str, str], name: str = "some-kernel", binding: str = "", more: str = ""
) -> str:
    """A build.toml with a component of one source for each backend; `more` stands in `[torch]`."""
    parts = "".join(
        f'[kernel.on_{backend}]\nbackend = "{backend}"\ndepends = ["torch"]\nsrc = ["{source}"]\n'
        for backend, source in sources.items()
    )
    return (
        f'[general]\nname = "{name}"\nversion = 1\nedition = 5\nlicense = "MIT"\n'
        f"backends = {[*sources]}\n"
        f"[torch]\nsrc = {[binding] if binding else []}\n{more}{parts}"
    )


def write_torch(
    directory: Path, sources: Mapping[str, str], name: str = "some-kernel", binding: str = ""
) -> Path:
    """Write such a kernel, its sources empty."""
    for source in filter(
        None, (*sources.values(), binding, f"torch-ext/{name.replace('-', '_')}/__init__.py")
    ):
        (directory / source).parent.mkdir(parents=True, exist_ok=True)
        (directory / source).touch()
    (directory / "build.toml").write_text(torch_toml(sources, name, binding))
    return directory


def noarch_kernel(backends: list[str], framework: str = "", name: str = "py-only") -> Kernel:
    """A kernel of Python only, or of whatever framework has the last word."""
    head = (
        f'[general]\nname = "{name}"\nversion = 1\nedition = 5\nlicense = "MIT"\n'
        f"backends = {backends}\n"
    )
    return kernel(
        head + framework if framework.startswith("[") else f"{head}[torch-noarch]\n{framework}\n"
    )


def read_yaml(text: str) -> Any:
    """YAML as GitHub and GitLab read it, by the library in C where there is one: the other is ten
    times as slow.
    """
    return yaml.load(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))


GIB = 1 << 30
MEMORY = Path("/dev/shm")
"""Where systems keep files in memory; pytest makes a folder of the user's own there."""


def memory_has_room() -> bool:
    """Whether the folders of tests can be in memory: no container's 64 MiB, and programs may be run
    from there.
    """
    try:
        there = os.statvfs(MEMORY)
        fields = (line.split() for line in Path("/proc/meminfo").read_text().splitlines())
        available = next(int(field[1]) * 1024 for field in fields if field[0] == "MemAvailable:")
    except (AttributeError, OSError, StopIteration):  # another system
        return False
    return (
        not there.f_flag & os.ST_NOEXEC
        and there.f_bavail * there.f_frsize > 4 * GIB
        and available > 8 * GIB
    )


def pytest_configure() -> None:
    """Where the folders of tests are, signals as a terminal has them, and the usual rights of new
    files.

    The tests make and remove some ten thousand small files; for a disk that takes longer than all
    else that they do. A shell without job control starts what runs in the background deaf to
    Ctrl-C, and all that tests start.
    """
    os.umask(0o022)
    os.environ.setdefault(
        "PYTEST_DEBUG_TEMPROOT", str(MEMORY) if memory_has_room() else tempfile.gettempdir()
    )
    if "PYTEST_XDIST_WORKER" not in os.environ:
        _folder_of_this_run()
    for ignored, usual in (
        (signal.SIGINT, signal.default_int_handler),
        (getattr(signal, "SIGQUIT", None), signal.SIG_DFL),
    ):
        if ignored is not None and signal.getsignal(ignored) is signal.SIG_IGN:
            signal.signal(ignored, usual)


OF_THE_MACHINE = ("cuda", "envs", "extensions", "headers", "roots", "wheels", "test-tools")
"""Parts of the user's cache that every run of the tests takes again: toolchains, which take minutes
to get."""

OF_THIS_RUN = "kci-tests-"


def _folder_of_this_run() -> None:
    """A folder for the temporary files of this run of the tests and of all that it starts, and for
    a cache.

    The cache has the user's toolchains and nothing that an earlier run has built: folders of tests
    can have the same paths in two runs, and `kci run` takes a build again that it made at a path.
    The names are short, as a socket's is.
    """
    usual = default_cache()
    made = Path(tempfile.mkdtemp(prefix=OF_THIS_RUN))
    for part in OF_THE_MACHINE:
        (usual / part).mkdir(parents=True, exist_ok=True)
        (made / "cache").mkdir(exist_ok=True)
        (made / "cache" / part).symlink_to(usual / part)
    (made / "tmp").mkdir()
    os.environ |= {"KCI_CACHE": str(made / "cache"), "TMPDIR": str(made / "tmp")}
    tempfile.tempdir = None  # it is found out once


def pytest_unconfigure() -> None:
    """Remove the folder of this run."""
    made = Path(os.environ.get("TMPDIR", "")).parent
    if "PYTEST_XDIST_WORKER" not in os.environ and made.name.startswith(OF_THIS_RUN):
        shutil.rmtree(made, ignore_errors=True)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Keep the garbage collector away from what stays to the end: it would look through all tests
    again and again.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()
        gc.freeze()


def pytest_addoption(parser: pytest.Parser) -> None:
    """`--update-golden`, for changing the golden files on purpose, and `--list-rule-marks`, for
    tests/test_rules.py.
    """
    parser.addoption(
        "--update-golden", action="store_true", help="write the golden files instead of comparing"
    )
    parser.addoption(
        "--list-rule-marks", action="store_true", help="print the rule marks of the collected tests"
    )


def load_script(name: str) -> ModuleType:
    """A script of bin/ as a module."""
    spec = importlib.util.spec_from_file_location(name, ROOT / "bin" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # where types look for the names in their annotations
    spec.loader.exec_module(module)
    return module


os.environ.setdefault("KCI_COMPILER_CACHE", "off")
"""Builds of tests compile, whatever compiler cache this machine has; see `_compiled_once`."""


@pytest.fixture(scope="session")
def catalog() -> Catalog:
    """An edition that tests can count on, whichever is the default."""
    return load_catalog("2026-08-20")


@pytest.fixture
def november(monkeypatch: pytest.MonkeyPatch) -> None:
    """The edition of that month is the default: what a test counts stays when the default moves."""
    monkeypatch.setattr("kci.matrix.catalog.loading.DEFAULT_EDITION", "2026-11-23")


@pytest.fixture(scope="session")
def shared_by_workers(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that the processes of one test run have in common, and no other run."""
    own = tmp_path_factory.getbasetemp()
    return own.parent if "PYTEST_XDIST_WORKER" in os.environ else own


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of the test, in which commands run, and not on GitHub."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("GITHUB_ACTIONS", raising=False)
    return tmp_path


@pytest.fixture
def no_git_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Git commands of a test must not see an outer repository through the environment."""
    for name in ("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def torch_cache(tmp_path: Path) -> Path:
    """A cache with kci's own torch environments, which are made once, and nothing else yet."""
    from buildkit import warm_cache

    return warm_cache(tmp_path)


@pytest.fixture(autouse=True)
def _loads_what_is_marked(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Load what a test builds only if the test is marked `torch` and it is for the CPU; else it
    counts as loaded.

    Torch for a GPU has five gigabytes; `all_are_loaded` asks for it.
    """
    if "all_are_loaded" in request.fixturenames:
        return
    real = "cpu" if request.node.get_closest_marker("torch") else ""
    monkeypatch.setenv(LOADED_IN_TESTS, real)
    monkeypatch.setattr(load_built, "_load", only_loading(real, load_built._load))


@pytest.fixture
def all_are_loaded() -> None:
    """Load every variant, of whatever backend."""


@pytest.fixture
def bare(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bare:
    """This machine without its programs."""
    from buildkit import Bare

    return Bare(tmp_path, monkeypatch)


@pytest.fixture
def torch_python() -> Path:
    """A Python that can import torch 2.13 (CPU) and load kernels."""
    from buildkit import runtime

    return runtime()


@pytest.fixture(autouse=True)
def _compiled_once(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let tests marked `torch` take what any test has compiled from the same bytes in the
    same way.
    """
    from buildkit import compiled_before

    if request.node.get_closest_marker("torch") and not OWN_WAY & set(request.fixturenames):
        for name, value in compiled_before().items():
            monkeypatch.setenv(name, value)


OWN_WAY = {"compiles_anew", "as_users_compile"}


@pytest.fixture
def compiles_anew() -> None:
    """For tests of what comes out of a compiler."""


@pytest.fixture
def as_users_compile(monkeypatch: pytest.MonkeyPatch) -> None:
    """For tests of which objects are compiled: none of the variables is set."""
    for name in ("CXX", "CCACHE_DIR", "KCI_COMPILER_CACHE"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def as_old_as_users_systems(monkeypatch: pytest.MonkeyPatch) -> None:
    """For tests of other things: what stands in for a newer glibc takes longer to compile than
    small kernels.
    """
    monkeypatch.setattr("kci.builders.toolchains.compilers.glibc_is_newer", lambda _cxx: False)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say which programs of others held kci to something, and in which version."""
    reports = [
        report for kind in ("passed", "failed") for report in terminalreporter.stats.get(kind, ())
    ]
    found = {
        str(value)
        for report in reports
        for name, value in report.user_properties
        if name == HELD_TO
    }
    if found:
        terminalreporter.write_line(f"{HELD_TO}: {', '.join(sorted(found))}")


# --- rules and the tests that they have -----------------------------------------------------------
#
# A test marked `@pytest.mark.rule("KCI131", triggers=True)` shows that the rule speaks, one with
# `triggers=False` that it stays silent; a mark may name several rules. The fixture below holds a
# test to its marks, and tests/test_rules.py asks that every rule has both kinds.


Noted = TypeVar("Noted", DroppedCandidate, UnplannedVariant)


class _Recorded(dict[str, diagnostics.Rule]):
    """The rules, and which of them spoke: as a diagnostic, or as the reason why a candidate or a
    leg was left out.
    """

    def __init__(self, rules: dict[str, diagnostics.Rule]) -> None:
        super().__init__(rules)
        self.asked: set[str] = set()

    def __getitem__(self, rule: str) -> diagnostics.Rule:
        self.asked.add(rule)
        return super().__getitem__(rule)

    def noting(self, make: Callable[..., Noted]) -> Callable[..., Noted]:
        """`make`, and the rule of what it makes is recorded."""

        def made(*arguments: Any, **keys: Any) -> Noted:
            item = make(*arguments, **keys)
            self.asked.add(item.rule)
            return item

        return made


PASSED = pytest.StashKey[bool]()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Iterator[None]:
    """Note whether a test has passed; fixtures that judge afterwards have nothing to say of one
    that was skipped.
    """
    report = yield
    judge_skip(report)
    if call.when == "call":
        item.stash[PASSED] = report.passed
    return report


@pytest.fixture(autouse=True)
def _rule_marks_hold(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> Iterator[None]:
    """Fail a test in which a rule that it is marked with did not do what the mark says."""
    marks = list(request.node.iter_markers("rule"))
    if not marks:
        yield
        return
    recorded = _Recorded(diagnostics.rules())
    monkeypatch.setattr(diagnostics, "rules", lambda: recorded)  # `finding` looks rules up there
    monkeypatch.setattr(selection, "DroppedCandidate", recorded.noting(DroppedCandidate))
    for module in (legs, github_limits):
        monkeypatch.setattr(module, "UnplannedVariant", recorded.noting(UnplannedVariant))
    yield
    for mark in marks if request.node.stash.get(PASSED, False) else []:
        for rule in mark.args:
            assert (rule in recorded.asked) is mark.kwargs["triggers"], f"{rule}: {mark.kwargs}"


PORTABLE_ROOMS = {"config", "matrix", "plan", "workflows"}
"""Rooms of functions from values to values; what of their tests needs no file runs on every
system."""

OF_ONE_SYSTEM = {"torch", "network", "slow", "programs"}
FILES = {"tmp_path", "tmp_path_factory", "tmpdir", "capfd", "torch_cache", "torch_python"}
"""Fixtures that stand for the file system and for programs."""


def is_portable(item: pytest.Item) -> bool:
    """Whether a test of this room asks for nothing that differs between systems."""
    fixtures = set(getattr(item, "fixturenames", ()))
    marks = {mark.name for mark in item.iter_markers()}
    return (
        item.path.parent.name in PORTABLE_ROOMS
        and not fixtures & FILES
        and not marks & OF_ONE_SYSTEM
    )


COLLECTED = pytest.StashKey[tuple[set[tuple[str, bool]], set[Path]]]()
"""The rule marks of what was collected and its files, before `-m` and `-k` leave anything out."""


@pytest.fixture(scope="session")
def collected_rule_marks(request: pytest.FixtureRequest) -> set[tuple[str, bool]] | None:
    """The rule marks of all tests; None where this run has not collected every file."""
    marks, files = request.config.stash[COLLECTED]
    return marks if files >= set((ROOT / "tests").rglob("test_*.py")) else None


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    for item in items:
        if is_portable(item):
            item.add_marker(pytest.mark.portable)
    marks = [mark for item in items for mark in item.iter_markers("rule")]
    found = {(rule, mark.kwargs["triggers"]) for mark in marks for rule in mark.args}
    config.stash[COLLECTED] = (found, {item.path for item in items})
    if config.getoption("--list-rule-marks"):
        for rule, triggers in sorted(found):
            print(f"rule {rule} {triggers}")
