"""kci.toml: how and where a repository builds its kernels. Optional, and so is every key in it.

The file lies at the root of the repository: the nearest directory at or above a kernel that has a `.git`. Outside of a
repository the nearest kci.toml at or above the kernel counts, up to the border of the file system, and only if it
belongs to the user or to root: a file that somebody else left in a shared directory must not choose runners.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import msgspec
from msgspec import field

from kci.config.document import Document, parse_document, read_document, refuse
from kci.config.engine_settings import EngineSettings
from kci.config.model import Table, Unsigned, decode_value
from kci.config.overlay_tables import KernelOverlay
from kci.config.values import SYSTEMS, Backend, Grouping, System, Tier
from kci.diagnostics import Diagnostic, finding
from kci.suggest import one_of, suggestion

KCI_TOML = "kci.toml"


class Machine(Table, frozen=True):
    """A kind of runner. Keys that are left out keep their default."""

    labels: tuple[str, ...] | None = None
    """The labels of `runs-on`; all have to match."""
    group: str | None = None
    """The runner group."""
    cpus: Unsigned | None = None
    memory_gb: Unsigned | None = None
    price: float | None = None
    """What an hour costs, in `currency`."""
    currency: str | None = None
    """Three letters, such as USD."""
    pool_size: Unsigned | None = None
    """How many such runners there are; no more jobs than that run in parallel."""


class Machines(Table, frozen=True):
    """Machines by system."""

    aarch64_darwin: Machine | None = field(default=None, name="aarch64-darwin")
    aarch64_linux: Machine | None = field(default=None, name="aarch64-linux")
    aarch64_windows: Machine | None = field(default=None, name="aarch64-windows")
    x86_64_linux: Machine | None = field(default=None, name="x86_64-linux")
    x86_64_windows: Machine | None = field(default=None, name="x86_64-windows")


class MachinesByBackend(Table, frozen=True):
    """Machines by backend and system: those that build, and those that test.

    `any` is for every backend, `noarch` for variants of Python only; the table of a backend goes before `any`.
    """

    any: Machines | None = None
    noarch: Machines | None = None
    cann: Machines | None = None
    cpu: Machines | None = None
    cuda: Machines | None = None
    metal: Machines | None = None
    neuron: Machines | None = None
    rocm: Machines | None = None
    tpu: Machines | None = None
    xpu: Machines | None = None


class ImageBySystem(Table, frozen=True):
    """The image in which a backend is built, by system; `{compute}` stands for the CUDA or ROCm version.

    A table has an image for each of those versions; for one that is not in it, kci's own image is taken.
    """

    aarch64_linux: str | dict[str, str] | None = field(default=None, name="aarch64-linux")
    x86_64_linux: str | dict[str, str] | None = field(default=None, name="x86_64-linux")
    disk_gb: Unsigned | None = None
    """The free disk that the image and a build in it need; a hosted runner with less is cleaned up first."""

    def images(self) -> Iterator[tuple[tuple[str, ...], str]]:
        """Every image, by its keys below the backend."""
        for system in ("aarch64-linux", "x86_64-linux"):
            named = by_name(self, system)
            if isinstance(named, str):
                yield (system,), named
            elif named:
                yield from (((system, compute), image) for compute, image in named.items())


class Images(Table, frozen=True):
    """Build images by backend."""

    cann: ImageBySystem | None = None
    cpu: ImageBySystem | None = None
    cuda: ImageBySystem | None = None
    neuron: ImageBySystem | None = None
    rocm: ImageBySystem | None = None
    tpu: ImageBySystem | None = None
    xpu: ImageBySystem | None = None


class Limit(Table, frozen=True):
    """Limits of the legs of one kernel, one backend, or both. Later entries go before earlier ones, key by key."""

    kernel: str | None = None
    """The name of a kernel; without it, every kernel."""
    backend: Backend | None = None
    """Without it, every backend."""
    max_jobs: Unsigned | None = None
    """How many compilers run in parallel in one leg."""
    cores: Unsigned | None = None
    """How many threads each of them may use, where it has threads: nvcc."""
    timeout_minutes: Unsigned | None = None
    """When a leg is given up."""


class UserTier(Table, frozen=True):
    """A custom tier: what its base tier builds, narrowed. Different keys narrow, entries of one list widen."""

    base: Tier = Tier.RELEASE
    backends: tuple[Backend, ...] = ()
    systems: tuple[System, ...] = ()
    only: tuple[str, ...] = ()
    """Patterns for variant names, such as `torch213-*`."""
    where: str | None = None
    """An expression, such as `cuda >= 13.0 and torch == newest`; see docs/filters.md."""
    pairwise: bool = False
    """Select a subset in which every pair of torch, compute version and system still occurs."""


class PlanTable(Table, frozen=True):
    """How variants are shared out among jobs."""

    group: Grouping = Grouping.VARIANT
    """What one job builds."""


class PullRequest(Table, frozen=True):
    """What a pull request builds."""

    tier: str = "pr"


class Tell(Table, frozen=True):
    """Who is told about failures of some legs of scheduled runs."""

    who: tuple[str, ...]
    """Accounts or teams, such as `@acme/kernels`."""
    kernel: str = "*"
    """A pattern for the kernel's name."""
    variant: str = "*"
    """A pattern for the variant's name."""

    def matches(self, kernel: str, variant: str) -> bool:
        """Whether a leg is meant."""
        return fnmatchcase(kernel, self.kernel) and fnmatchcase(variant, self.variant)


class Decisions(Table, frozen=True):
    """When scheduled runs lead to issues."""

    failures: Unsigned = 3
    """How many failures in a row open an issue."""
    flaky_turns: Unsigned = 4
    """How many changes between passing and failing make a leg flaky."""
    flaky_runs: Unsigned = 14
    """The number of its latest runs among which they are counted."""
    carry_out: bool = True
    """Whether the scheduled workflow changes issues by itself, or only shows what it would do."""
    tell: tuple[Tell, ...] = ()


class Schedule(Table, frozen=True):
    """When the scheduled run happens, and what follows from its results."""

    cron: str | None = None
    """Five fields, as in crontab."""
    timezone: str = "UTC"
    tier: str = "compat"
    issues: Decisions = Decisions()


class Publish(Table, frozen=True):
    """Where a release goes. A kernel's own `general.hub` goes before this."""

    repo_prefix: str | None = None
    """The owner on the Hub; the kernel's name is appended."""
    branch: str | None = None


class ActionPin(Table, frozen=True):
    """The commit that an action is pinned to, and the version that its comment names."""

    sha: str
    version: str = ""


class Ignore(Table, frozen=True):
    """A rule that does not hold in some files, and why."""

    rule: str
    path: str
    """A file, or a pattern for files, relative to kci.toml."""
    reason: str


class LintSettings(Table, frozen=True):
    """`[lint]`."""

    ignore: tuple[Ignore, ...] = ()


class DeclaredInputs(Table, frozen=True):
    """Files outside of a kernel's directory that its sources may include."""

    paths: tuple[str, ...]
    """Files and directories, relative to kci.toml."""
    kernel: str | None = None
    """The name of a kernel; without it, every kernel."""


class Signing(Table, frozen=True):
    """`[signing]`: who may sign a tree or an artifact, and what an attestation has to name."""

    keys: tuple[str, ...] = ()
    """Public keys: files relative to kci.toml, or the keys themselves (`ssh-ed25519 AAAA...`)."""
    repository: str | None = None
    """The repository that files must come from, as `owner/name`."""
    workflow: str | None = None
    """The workflow that must have made them, as GitHub names it: `owner/name/.github/workflows/x.yaml@<ref>`."""


class Settings(Table, frozen=True):
    """A complete kci.toml."""

    runners: MachinesByBackend = MachinesByBackend()
    images: Images = Images()
    test: MachinesByBackend = MachinesByBackend()
    limits: tuple[Limit, ...] = ()
    tiers: dict[str, UserTier] = {}  # noqa: RUF012  - msgspec copies it
    plan: PlanTable = PlanTable()
    pull_request: PullRequest = PullRequest()
    schedule: Schedule = Schedule()
    publish: Publish = Publish()
    signing: Signing = Signing()
    actions: dict[str, ActionPin] = {}  # noqa: RUF012
    catalog: str | None = None
    """The name of an edition of the catalog, or a catalog file relative to kci.toml."""
    overlay: tuple[KernelOverlay, ...] = ()
    """What is different about the catalog here, or for one kernel; applied in order."""
    inputs: tuple[DeclaredInputs, ...] = ()
    """What kernels may include from outside of their directories; it counts as an input of theirs."""
    lint: LintSettings = LintSettings()
    mirrors: dict[str, str] = {}  # noqa: RUF012
    """Where builds get what is on GitHub, by name: `cutlass`."""
    engines: dict[str, EngineSettings] = {}  # noqa: RUF012
    """Where legs run with `kci run --engine`, by a name of one's choice."""

    def inputs_of(self, kernel: str) -> tuple[str, ...]:
        """What the sources of a kernel may include outside of its directory, relative to kci.toml."""
        found = (path for entry in self.inputs if entry.kernel in (None, kernel) for path in entry.paths)
        return tuple(dict.fromkeys(found))


class FoundSettings(msgspec.Struct, frozen=True):
    """The settings that hold for a kernel, and where they come from."""

    settings: Settings = Settings()
    root: Path = Path()
    """The directory that paths in kci.toml are relative to."""
    document: Document | None = None
    """The file; None where there is none and the defaults hold."""

    @property
    def catalog(self) -> str | None:
        """What to load the catalog from: an edition's name, or the path of a file relative to kci.toml."""
        chosen = self.settings.catalog
        if chosen is None or not ("/" in chosen or chosen.endswith(".toml")):
            return chosen
        return str(self.root / chosen)


def by_name(table: msgspec.Struct, name: str) -> Any:
    """The value of a table's key as it is spelled in the file; None where it is not set or does not exist."""
    names = dict(zip(table.__struct_encode_fields__, table.__struct_fields__, strict=True))
    return getattr(table, names[name]) if name in names else None


def find_settings(directory: str | Path) -> FoundSettings:
    """The settings for a kernel directory: those of its kci.toml (see the module's text), or the defaults.

    Raises:
        FindingsError: the file is not valid; it carries every diagnostic.
    """
    root, path = locate(Path(directory))
    if path is None:
        return FoundSettings(root=root)
    document = read_document(path, _shown(path))
    return FoundSettings(interpret_settings(document), root, document)


def settings_for(directories: Sequence[str]) -> FoundSettings:
    """The settings that several kernels share.

    Raises:
        UsageError: they lie in different repositories with a kci.toml.
        FindingsError: see `find_settings`.
    """
    from kci.errors import UsageError  # noqa: PLC0415

    places = {locate(Path(directory)): directory for directory in directories or (".",)}
    files = {path for _, path in places if path is not None}
    if len(files) > 1:
        shown = " and ".join(sorted(_shown(path) for path in files))
        raise UsageError(f"the kernels have different settings: {shown}", hint="name the kernels of one repository")
    with_file = [directory for (_, path), directory in places.items() if path is not None]
    return find_settings(with_file[0] if with_file else next(iter(places.values())))


def locate(directory: Path) -> tuple[Path, Path | None]:
    """The root for a directory, and the kci.toml there if there is one."""
    start = directory.resolve()
    above = (start, *start.parents)
    for place in above:
        if (place / ".git").exists():
            file = place / KCI_TOML
            return place, file if os.path.lexists(file) else None
    device = start.stat().st_dev if start.exists() else None
    for place in above:
        if device is not None and place.stat().st_dev != device:
            break
        file = place / KCI_TOML
        if file.is_file() and _is_ours(file):
            return place, file
    return start, None


def _is_ours(file: Path) -> bool:
    """Whether a file belongs to this user or to root. Unknown on Windows, where no such file is used."""
    return sys.platform != "win32" and file.stat().st_uid in (0, os.getuid())


def _shown(path: Path) -> str:
    """A path relative to the working directory."""
    relative = os.path.relpath(path)
    return str(path) if relative.startswith(os.path.join("..", "..", "..")) else relative  # noqa: PTH118


def parse_settings(raw: bytes, shown_as: str = KCI_TOML) -> Settings:
    """Read a kci.toml from its bytes.

    Raises:
        FindingsError: it is not valid.
    """
    return interpret_settings(parse_document(raw, shown_as))


def interpret_settings(document: Document) -> Settings:
    """Turn a parsed TOML file into settings.

    Raises:
        FindingsError: it is not a valid kci.toml; it carries every diagnostic.
    """
    try:
        return msgspec.convert(document.data, Settings, dec_hook=decode_value)
    except (msgspec.ValidationError, RecursionError):
        from kci.config.mismatch import explain  # noqa: PLC0415  - only for files that failed

        misplaced = _misplaced_machines(document)
        told = {(item.line, item.column) for item in misplaced}
        problems = [item for item in explain(document, document.data, Settings) if (item.line, item.column) not in told]
        problems = sorted(misplaced + problems, key=lambda item: (item.line, item.column, item.rule))
        if not problems:
            problems = [finding("KCI103", "the file does not have the structure of a kci.toml", path=document.path)]
        raise refuse(*problems) from None


_PLACES = [*MachinesByBackend.__struct_encode_fields__]
_MACHINE_KEYS = [*Machine.__struct_encode_fields__]


def _misplaced_machines(document: Document) -> list[Diagnostic]:
    """KCI320 and KCI321: a runner whose system or backend is unknown or left out, said better than "unknown key"."""
    found = []
    for table in ("runners", "test"):
        by_backend = document.data.get(table)
        for backend, by_system in by_backend.items() if isinstance(by_backend, dict) else ():
            span = document.key_span((table, backend)) if backend not in _PLACES else None
            if backend in SYSTEMS or backend in _MACHINE_KEYS:
                message = f"`{table}.{backend}` does not name a backend"
                example = backend if backend in SYSTEMS else "x86_64-linux"
                hint = f"write `[{table}.any.{example}]`, or a backend in place of `any`"
                found.append(finding("KCI321", message, hint=hint, path=document.path, span=span))
            elif backend not in _PLACES:
                message = f"`{backend[:60]}` is not a backend that a runner can be for"
                hint = suggestion(backend, _PLACES) or one_of(_PLACES)
                found.append(finding("KCI320", message, hint=hint, path=document.path, span=span))
            else:
                found += _misplaced_in(document, table, backend, by_system)
    return found


def _misplaced_in(document: Document, table: str, backend: str, by_system: Any) -> list[Diagnostic]:
    found = []
    for system in by_system if isinstance(by_system, dict) else ():
        span = document.key_span((table, backend, system)) if system not in SYSTEMS else None
        if system in _MACHINE_KEYS:
            message = f"`{system}` is in `[{table}.{backend}]`, which does not name a system"
            hint = f"write it in `[{table}.{backend}.x86_64-linux]`, or in the table of its system"
            found.append(finding("KCI321", message, hint=hint, path=document.path, span=span))
        elif system not in SYSTEMS:
            message = f"`{system[:60]}` is not a system"
            hint = suggestion(system, SYSTEMS) or one_of(SYSTEMS)
            found.append(finding("KCI320", message, hint=hint, path=document.path, span=span))
    return found


def settings_schema() -> dict[str, Any]:
    """The JSON Schema of kci.toml, for editors; made from the types that read it."""
    from kci.config.schema import document_schema, value_definition  # noqa: PLC0415  - only asked for by `kci schema`

    title = "kci.toml: how and where a repository wants its GPU kernels built"
    return document_schema(Settings, title, value_definition)
