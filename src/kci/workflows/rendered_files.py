"""Rendered files in a repository: reading, writing, their header, and drift."""

from __future__ import annotations

import difflib
import enum
import hashlib
import re
import shlex
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack
from getopt import GetoptError, gnu_getopt
from pathlib import Path

from msgspec.structs import replace
from packaging.version import Version

from kci.config.settings import Actions
from kci.diagnostics import Diagnostic, finding
from kci.errors import FindingsError, UnsafeError, UsageError
from kci.utils.atomic import replacing
from kci.utils.frozen import Frozen
from kci.utils.git import run_git
from kci.utils.shipped import Dated, shipped
from kci.version import REPOSITORY, __version__

OWN = "kci/build"

RELEASE_DATA = Path(__file__).parent / "data" / "release.toml"

# `uses: owner/repository/folder@reference  # version`, a line of a step.
_USES = re.compile(
    r"^([ \t]*(?:-[ \t]+)?uses:[ \t]*[\"']?([^\s@#\"']+))@([^\s#\"']+)[\"']?(?:[ \t]+#[ "
    r"\t]*(.*?))?[ \t]*$",
    re.MULTILINE,
)
_SHA = re.compile(r"[0-9a-f]{40}")
_VERSION = re.compile(r"v\d{1,9}(?:\.\d{1,9})*", re.ASCII)


class Pin(Frozen, forbid_unknown_fields=True):
    """The commit and version of an action; without a commit, workflows name the version's tag."""

    sha: str
    version: str
    repository: str = ""
    """The repository, if its name is not the action's."""


class _OwnActions(Frozen, forbid_unknown_fields=True):
    ref: str
    released: bool


class _PinFile(Dated):
    action: dict[str, Pin]
    own: _OwnActions


class _Release(Dated):
    commit: str
    version: str


_pin_file = shipped("workflows/data/pins.toml", _PinFile)


def shipped_pins() -> dict[str, Pin]:
    """The pins of `data/pins.toml`, by `owner/repository`."""
    own = _pin_file().own
    return dict(
        sorted({**_pin_file().action, OWN: Pin("", own.ref, repository=REPOSITORY)}.items())
    )


def unreleased(pins: Mapping[str, Pin]) -> str:
    """The reference of kci's own actions if it names a release that does not exist yet;
    else empty.
    """
    own = pins[OWN]
    shipped = own == shipped_pins()[OWN]
    return f"{own.repository}@{own.version}" if shipped and not is_released() else ""


def is_released() -> bool:
    """True once kci's names exist: the repository of its actions, and the package."""
    return _pin_file().own.released or RELEASE_DATA.is_file()


def release_pin() -> Pin:
    """The pin of kci's own actions at this release, from its package; UsageError for a checkout."""
    if not RELEASE_DATA.is_file():
        hint = "install a release, or name the commit in kci.toml: `[actions]` with `ref`"
        raise UsageError(
            f"kci {__version__} was not installed from a release, and so knows no commit", hint
        )
    release = shipped(RELEASE_DATA, _Release)()
    return replace(shipped_pins()[OWN], sha=release.commit, version=f"v{release.version}")


def action_of(reference: str) -> str:
    """`owner/repository` of a reference: actions in folders of one repository share its commit."""
    return "/".join(reference.split("/")[:2])


_NO_ACTIONS = Actions()


def choose_pins(
    files: Mapping[str, str], actions: Actions = _NO_ACTIONS, *, by_commit: bool | None = None
) -> dict[str, Pin]:
    """The pins to render with: what `[actions]` of kci.toml says, else the newer of the shipped and
    the committed one; `files` are the committed workflow files by path.

    `by_commit` is True for the release's commit of kci's own actions, False for their tag, None for
    a committed pin.
    """
    pins, ref = shipped_pins(), actions.ref
    own = release_pin() if by_commit and ref is None else pins[OWN]
    own = replace(own, repository=actions.repository or own.repository)
    if ref is not None:
        sha, version = (ref, "") if _SHA.fullmatch(ref) else ("", ref)
        own = replace(own, sha=sha, version=version)
    pins[OWN] = own
    fixed = actions.pins.keys() & pins.keys() - {OWN}
    for action in fixed:
        chosen = actions.pins[action]
        pins[action] = replace(pins[action], sha=chosen.sha, version=chosen.version)
    if by_commit is False or ref is not None:
        fixed.add(OWN)
    names = {pin.repository or action: action for action, pin in pins.items()}
    for reference, newer in _newest_pins(files.values()).items():
        action = names.get(reference, "")
        if action not in pins or action in fixed or newer.sha == pins[action].sha:
            continue
        if not pins[action].sha or Version(newer.version) > Version(pins[action].version):
            pins[action] = replace(pins[action], sha=newer.sha, version=newer.version)
    return pins


def find_pins(text: str) -> Iterator[tuple[str, Pin]]:
    """Each `uses:` with a commit and a version comment, by `owner/repository`."""
    for match in _USES.finditer(text):
        if pin := _pin_of(match):
            yield action_of(match[2]), pin


def _pin_of(match: re.Match[str]) -> Pin | None:
    version = (match[4] or "").split(" ")[0]
    well_formed = _SHA.fullmatch(match[3]) and _VERSION.fullmatch(version)
    return Pin(match[3], version) if well_formed else None


def _newest_pins(texts: Iterable[str]) -> dict[str, Pin]:
    found = [pin for text in texts for pin in find_pins(text)]
    return dict(sorted(found, key=lambda item: Version(item[1].version)))


def without_pins(text: str) -> str:
    """The text without its well-formed pins, for comparison."""

    def without(match: re.Match[str]) -> str:
        # Rendered files give the tags of kci's own actions this comment.
        own = action_of(match[2]) == OWN and _VERSION.fullmatch(match[3])
        tagged = own or "zizmor: ignore[unpinned-uses]" in (match[4] or "")
        return match[1] if tagged or _pin_of(match) else match[0]

    return _USES.sub(without, text)


def apply_pins(text: str, pins: Mapping[str, Pin], committed: str) -> str:
    """The repository's own steps with kci's pins for actions that kci uses; of others a newer
    committed pin is kept.
    """
    newest = _newest_pins((text, committed))

    def better(match: re.Match[str]) -> str:
        action = action_of(match[2])
        pin = pins.get(action) or (newest[action] if _pin_of(match) else None)
        if not pin or not pin.sha or not _SHA.fullmatch(match[3]) or pin.sha == match[3]:
            return match[0]
        return f"{match[1]}@{pin.sha} # {pin.version}"

    return _USES.sub(better, text)


_MAX_BYTES = 2_000_000


def read_committed(root: Path, paths: Iterable[str]) -> dict[str, str]:
    """The texts of existing files, by path; UnsafeError for a link, FindingsError if one is
    unreadable or too large.
    """
    texts = {}
    for path in sorted(paths):
        file = _inside(root, path)
        if not file.exists():
            continue
        try:
            if file.stat().st_size > _MAX_BYTES:
                raise FindingsError(
                    f"{path}: larger than any workflow", "move it away and render again"
                )
            texts[path] = file.read_text(encoding="utf-8")
        except OSError as error:
            raise FindingsError(f"cannot read {path}: {error.strerror or error}") from None
        except UnicodeDecodeError:
            raise FindingsError(f"{path}: not UTF-8", "move it away and render again") from None
    return texts


def write_files(root: Path, files: Mapping[str, str]) -> None:
    """Write all files, each atomically, after all are prepared; UnsafeError as `read_committed`."""
    with ExitStack() as stack:
        targets = [(_inside(root, path), text) for path, text in sorted(files.items())]
        prepared = [(stack.enter_context(replacing(target)), text) for target, text in targets]
        for replacement, text in prepared:
            replacement.staging.write_text(text, encoding="utf-8", newline="\n")
            replacement.staging.chmod(0o644)
        for replacement, _ in prepared:
            replacement.commit()


def remove_files(root: Path, paths: Iterable[str]) -> None:
    """Remove files; raises as `read_committed`."""
    for path in paths:
        try:
            _inside(root, path).unlink()
        except OSError as error:
            raise FindingsError(f"cannot remove {path}: {error.strerror or error}") from None


def _inside(root: Path, path: str) -> Path:
    file = root / path
    for place in reversed((file, *file.parents[: len(Path(path).parts) - 1])):
        if place.is_symlink() or (
            place.exists() and not (place.is_file() if place == file else place.is_dir())
        ):
            kind = "file" if place == file else "directory"
            raise UnsafeError(
                f"{place}: not a plain {kind}", "remove it; kci does not write through links"
            )
    return file


HEADER = "# Generated by kci "

_COMMAND = re.compile(rf"^{HEADER}\S+ from .*\n#   (kci render(?: .*)?)$", re.MULTILINE)
_CONTENT = re.compile(r"^# kci-content: ([0-9a-f]{16})$", re.MULTILINE)
_GENERATED = re.compile(rf"^{HEADER}\S+ from ", re.MULTILINE)
_INPUTS = re.compile(r"^# kci-inputs: .*\n", re.MULTILINE)
_VOLATILE = re.compile(
    rf"^(?:{HEADER}\S+ from .*|# kci-inputs: \S*|# kci-content: \S*)$", re.MULTILINE
)
_TOP = 4096


class RecordedOptions(Frozen):
    """The options of the command in a file's header."""

    kernels: tuple[str, ...] = ()
    branch: str | None = None
    pin: str | None = None
    short: bool = False


def recorded_options(text: str) -> RecordedOptions:
    """The options in a file's header; defaults for a command that kci does not write, such as with
    kernels outside.
    """
    match = _COMMAND.search(text[:_TOP])
    try:
        options, kernels = (
            gnu_getopt(shlex.split(match[1])[2:], "", ["branch=", "pin=", "ci=", "short"])
            if match
            else ([], [])
        )
    except (ValueError, GetoptError):
        return RecordedOptions()
    if any(Path(kernel).is_absolute() or ".." in Path(kernel).parts for kernel in kernels):
        return RecordedOptions()
    values = dict(options)
    return RecordedOptions(
        tuple(kernels), values.get("--branch"), values.get("--pin"), "--short" in values
    )


def with_checksum(text: str) -> str:
    """The file with a checksum in its header, which reveals later edits."""
    return _INPUTS.sub(
        lambda line: f"{line[0]}# kci-content: {_content_digest(text)}\n", text, count=1
    )


def _content_digest(text: str) -> str:
    return hashlib.sha256(_comparable(text).encode()).hexdigest()[:16]


def _comparable(text: str) -> str:
    return "\n".join(
        line for line in without_pins(_VOLATILE.sub("", text)).split("\n") if line.strip()
    )


def default_branch(root: Path) -> str:
    """The branch of releases: the remote's default, else `main` or `master`, whichever exists."""
    head = run_git(root, "symbolic-ref", "--short", "refs/remotes/origin/HEAD") or b""
    name = head.decode("utf-8", "replace").strip().removeprefix("origin/")
    if name and name.isprintable():
        return name
    for name in ("main", "master"):
        if run_git(root, "rev-parse", "--verify", "--quiet", f"refs/heads/{name}") is not None:
            return name
    return "main"


_MAX_DIFF_LINES = 20_000


class Drift(enum.Enum):
    """The relation of a committed file to the rendered one: rule, message and hint."""

    SAME = ("", "", "")
    MISSING = ("KCI401", "there is no such file", "run `kci render`")
    CHANGED = (
        "KCI401",
        "the file is not what kci would write now",
        "run `kci render` and commit the result",
    )
    OBSOLETE = (
        "KCI401",
        "kci wrote this file and no longer needs it",
        "run `kci render`, which removes it",
    )
    EDITED = (
        "KCI406",
        "somebody has edited this file since kci wrote it, and kci does not overwrite that",
        "make the change in build.toml or kci.toml; `kci render --force` replaces the file",
    )
    FOREIGN = (
        "KCI402",
        "kci did not write this file and does not overwrite it",
        "move or remove it, then run `kci render`",
    )


class Comparison(Frozen):
    """A committed file and the rendered one."""

    path: str
    state: Drift
    old: str | None
    new: str | None

    @property
    def diff(self) -> str:
        """It turns the committed file into the rendered one."""
        if self.state is Drift.SAME:
            return ""
        path, old, new = self.path, self.old, self.new
        before, after = old.split("\n") if old else [], new.split("\n") if new else []
        if len(before) + len(after) > _MAX_DIFF_LINES:  # difflib is quadratic at worst
            lengths = f"{len(before)} and {len(after)} lines"
            return f"--- {path}\n+++ {path}\n(too long to compare: {lengths})\n"
        there = (
            "/dev/null" if old is None else f"a/{path}",
            "/dev/null" if new is None else f"b/{path}",
        )
        return "\n".join(difflib.unified_diff(before, after, *there, lineterm="")) + "\n"


def compare(rendered: Mapping[str, str], committed: Mapping[str, str]) -> list[Comparison]:
    """Compare rendered and committed files by path; pins, empty lines and version lines of the
    header do not count.
    """
    comparisons = []
    for path in sorted({*rendered, *committed}):
        old, new = committed.get(path), rendered.get(path)
        if state := _drift(old, new):
            comparisons.append(Comparison(path, state, old, new))
    return comparisons


def _drift(old: str | None, new: str | None) -> Drift | None:
    if old is None:
        return Drift.MISSING
    if new is not None and _comparable(old) == _comparable(new):
        return Drift.SAME
    if not _GENERATED.search(old[:_TOP]):
        return Drift.FOREIGN if new is not None else None
    content = _CONTENT.search(old[:_TOP])
    if not content or content[1] != _content_digest(old):
        return Drift.EDITED
    return Drift.CHANGED if new is not None else Drift.OBSOLETE


def drift_diagnostics(comparisons: Iterable[Comparison]) -> list[Diagnostic]:
    """KCI401, KCI402 and KCI406 for the committed files."""
    found = []
    for item in comparisons:
        rule, message, hint = item.state.value
        if rule:
            found.append(finding(rule, message, item.path, hint=hint))
    return found
