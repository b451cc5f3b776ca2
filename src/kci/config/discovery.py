"""Finds kernels below paths, the kci.toml that applies to them, and the findings that it
suppresses.
"""

from __future__ import annotations

import fnmatch
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path

from kci.config.document import Document, read_document
from kci.config.reader import BUILD_TOML, Kernel, read_as, read_kernel
from kci.config.settings import KCI_TOML, Ignore, Settings
from kci.diagnostics import Diagnostic, finding
from kci.errors import FindingsError, MissingToolError, UsageError
from kci.utils.frozen import Frozen


class FaultyKernel(Frozen):
    """A kernel directory without a usable build.toml."""

    path: str
    kernel: str
    """Empty if build.toml cannot be read."""
    message: str
    diagnostics: tuple[Diagnostic, ...]


def find_kernels(arguments: Sequence[str], *, pass_over: bool = False) -> list[str]:
    """Find kernels at or below the arguments, sorted, or the one around the working directory.

    Raises UsageError.

    Hidden and ignored directories are skipped; with `pass_over`, so are arguments without a kernel
    beside others.
    """
    kernels: set[str] = set()
    without: list[FindingsError] = []
    for argument in arguments or (".",):
        directory = argument.rstrip("/") or argument[:1]
        if directory.endswith(f"/{BUILD_TOML}") or directory == BUILD_TOML:
            directory = os.path.dirname(directory) or "."  # noqa: PTH120
        path = Path(directory)
        if not directory or not os.path.isdir(path):  # noqa: PTH112  - of a name that is too long, False
            shown = argument[:200] or "an empty name"
            is_file = os.path.isfile(path)  # noqa: PTH113
            what = "this is a file, not a directory" if is_file else "there is no such directory"
            raise UsageError(f"{shown}: {what}", hint="name a directory with a build.toml")
        found = [directory] if (path / BUILD_TOML).is_file() else _kernels_below(path)
        found = found or (_kernel_around(path) if path == Path() else [])
        kernels.update(map(os.path.normpath, found))
        if not found:
            hint = "name a directory that holds a build.toml; `kci init NAME` begins a kernel"
            without.append(FindingsError(f"{argument}: no build.toml here or below", hint=hint))
    if without and not (pass_over and kernels):
        raise without[0]
    return sorted(kernels)


def _kernel_around(directory: Path) -> list[str]:
    start = directory.resolve()
    root, place = _git_root(start), next(_above_with(start, BUILD_TOML), None)
    return (
        [os.path.relpath(place)] if place and (root is None or place.is_relative_to(root)) else []
    )


def _git_root(start: Path) -> Path | None:
    return next((place for place in (start, *start.parents) if (place / ".git").exists()), None)


def _above_with(start: Path, name: str) -> Iterator[Path]:
    """The places at and above with a file that this user or root owns; Windows does not know the
    owner.
    """
    device = start.stat().st_dev if start.exists() else None
    for place in (start, *start.parents):
        if sys.platform == "win32" or (device is not None and place.stat().st_dev != device):
            break
        if (place / name).is_file() and (place / name).stat().st_uid in (0, os.getuid()):
            yield place


def companion(directory: Path, name: str) -> Path:
    """A kernel's `tests`, card or `benchmarks`: beside build.toml, or else beside the `src` that
    build.toml is in.
    """
    own, top = directory / name, directory.resolve()
    if top.name != "src" or os.path.lexists(own) or (top / ".git").exists():
        return own
    return Path(os.path.normpath(directory / os.pardir)) / name


def read_kernels(arguments: Sequence[str]) -> tuple[list[Kernel], list[FaultyKernel]]:
    """Read every kernel of `find_kernels`; invalid ones come second."""
    kernels, faulty = [], []
    for directory in find_kernels(arguments):
        try:
            kernels.append(read_kernel(directory))
        except FindingsError as error:
            faulty.append(FaultyKernel(directory, "", error.message, error.diagnostics))
    return kernels, faulty


def same_names(kernels: Iterable[tuple[str, str]]) -> list[Diagnostic]:
    """KCI304 for kernels (name and directory) of one name."""
    places: dict[str, list[str]] = {}
    for name, place in kernels:
        places.setdefault(name, []).append(place)
    return [
        finding(
            "KCI304",
            f"{len(same)} kernels are named {name!r}: {', '.join(same)}",
            path=f"{same[1]}/{BUILD_TOML}",
            hint="rename one, or plan them apart; versions of one kernel: docs/recipes.md",
        )
        for name, same in sorted(places.items())
        if len(same) > 1
    ]


def invalid_kernels_error(faulty: Sequence[FaultyKernel], count: int) -> FindingsError:
    """Make the error about invalid kernels; `count` includes the valid ones."""
    if len(faulty) == 1:
        return FindingsError(faulty[0].message, diagnostics=faulty[0].diagnostics)
    every = [diagnostic for item in faulty for diagnostic in item.diagnostics]
    return FindingsError(f"{len(faulty)} of {count} build.toml are invalid", diagnostics=every)


def _kernels_below(top: Path) -> list[str]:
    # with a build.toml, and neither hidden nor inside another one
    from kci.utils.git import GitRefusedError, run_git

    listed, kinds = None, ("--cached", "--others", "--exclude-standard")
    with suppress(GitRefusedError, MissingToolError):
        listed = run_git(top, "ls-files", "-z", *kinds, "--", f":(glob)**/{BUILD_TOML}")
    names = _walk(top) if listed is None else os.fsdecode(listed).split("\0")
    places = {Path(name).parent for name in names if (top / name).is_file()}
    visible = {place for place in places if not any(part.startswith(".") for part in place.parts)}
    return [str(top / place) for place in visible if visible.isdisjoint(place.parents)]


def _walk(top: Path) -> Iterator[str]:
    for directory, below, files in os.walk(top):
        below[:] = sorted(name for name in below if not name.startswith("."))
        if BUILD_TOML in files:
            below.clear()
            yield os.path.relpath(os.path.join(directory, BUILD_TOML), top)  # noqa: PTH118


class RepositorySettings(Frozen):
    """The settings of a kernel, and the file that they come from."""

    settings: Settings = Settings()
    root: Path = Path()
    """Paths in kci.toml are relative to it."""
    document: Document | None = None
    """None if the defaults apply."""

    @property
    def catalog(self) -> str | None:
        """An edition's name, or the path of a catalog file; None for the default."""
        chosen = self.settings.catalog
        if chosen is None or not ("/" in chosen or chosen.endswith(".toml")):
            return chosen
        return str(self.root / chosen)

    @property
    def publishes(self) -> bool:
        """True with a `[publish]` table, even an empty one."""
        return self.document is not None and "publish" in self.document.data

    @property
    def trust_config(self) -> Path | None:
        """The trust file of a private Sigstore; None for the public one."""
        name = self.settings.signing.trust_config
        return self.root / name if name else None


def find_settings(directory: str | Path) -> RepositorySettings:
    """Read the kci.toml of a kernel's repository, or take the defaults.

    Raises FindingsError if it is invalid.
    """
    return _read_settings(*find_root(Path(directory)))


def _read_settings(root: Path, path: Path | None) -> RepositorySettings:
    if path is None:
        return RepositorySettings(root=root)
    document = read_document(path, _display_path(path))
    return RepositorySettings(read_as(document, Settings), root, document)


def settings_of_tree(tree: str | Path) -> RepositorySettings:
    """The settings for a tree whose kernel is not named: those of the repository one stands in,
    else the defaults.

    A kci.toml that may have come with the tree does not count: one of the two lies in the directory
    of the other.
    """
    root, _ = find_root(Path())
    places = (Path(os.path.abspath(tree)), Path(tree).resolve())  # noqa: PTH100  - a link in what was fetched counts too
    if any(place.is_relative_to(root) or root.is_relative_to(place.parent) for place in places):
        return RepositorySettings()
    return find_settings(root)


def settings_for(directories: Sequence[str]) -> RepositorySettings:
    """Read the settings that kernels share.

    Raises UsageError if their repositories have different kci.toml files.
    """
    places = dict.fromkeys(find_root(Path(directory)) for directory in directories or (".",))
    files = sorted(_display_path(path) for _, path in places if path is not None)
    if len(files) > 1:
        hint = "name the kernels of one repository"
        if not any((root / ".git").exists() for root, _ in places):
            folder = _display_path(Path(os.path.commonpath([root for root, _ in places])))
            hint += (
                f"; to make one of them, move {files[0]} to {folder}, and remove "
                f"{' and '.join(files[1:])}"
            )
        raise UsageError(f"the kernels have different settings: {' and '.join(files)}", hint=hint)
    return _read_settings(*next((place for place in places if place[1]), next(iter(places))))


def find_root(directory: Path) -> tuple[Path, Path | None]:
    """Find the repository root of a directory, and the kci.toml there."""
    start = directory.resolve()
    root = _git_root(start) or next(_above_with(start, KCI_TOML), start)
    file = root / KCI_TOML
    return root, file if os.path.lexists(file) else None


def _display_path(path: Path) -> str:
    relative = os.path.relpath(path)
    return str(path) if relative.startswith(os.path.join("..", "..", "..")) else relative  # noqa: PTH118


class SuppressedFinding(Frozen):
    """A finding that kci.toml suppresses."""

    diagnostic: Diagnostic
    reason: str


Note = Callable[[SuppressedFinding], None]


def drop_suppressed(
    findings: Iterable[Diagnostic],
    settings: RepositorySettings,
    note: Note = lambda _suppressed: None,
) -> list[Diagnostic]:
    """Drop the diagnostics that kci.toml suppresses; `note` receives each dropped one."""
    entries = settings.settings.lint.ignore
    return _unsuppressed(findings, entries, lambda path: _relative(path, settings.root), note)


def _unsuppressed(
    findings: Iterable[Diagnostic],
    entries: Sequence[Ignore],
    place: Callable[[str], str | None],
    note: Note,
) -> list[Diagnostic]:
    kept = []
    for item in findings:
        path = place(item.path)
        about = (
            entry for entry in entries if path is not None and fnmatch.fnmatchcase(path, entry.path)
        )
        reasons = (entry.reason.strip() for entry in about if entry.rule == item.rule)
        if reason := next(filter(None, reasons), ""):
            note(SuppressedFinding(item, reason))
        else:
            kept.append(item)
    return kept


def tree_suppressions(settings: RepositorySettings) -> tuple[Ignore, ...]:
    """The suppressions of `kci verify` findings, whose rules are KCI7xx."""
    return tuple(entry for entry in settings.settings.lint.ignore if entry.rule.startswith("KCI7"))


def tree_place(settings: RepositorySettings, kernel_dir: str) -> str:
    """The path by which kci.toml names a kernel's tree: `build` in its directory, wherever the tree
    is.
    """
    return _relative(f"{kernel_dir}/build", settings.root)


def drop_suppressed_in_tree(
    findings: Iterable[Diagnostic], entries: Sequence[Ignore], shown: str, place: str, note: Note
) -> list[Diagnostic]:
    """Drop a tree's suppressed diagnostics; `shown` is its path in messages, `place` comes from
    `tree_place`.
    """

    def settings_path(path: str) -> str | None:
        return place + path.removeprefix(shown) if f"{path}/".startswith(f"{shown}/") else None

    return _unsuppressed(findings, entries, settings_path, note)


def _relative(path: str, root: Path) -> str:
    return os.path.relpath(os.path.realpath(path), os.path.realpath(root)).replace(os.sep, "/")
