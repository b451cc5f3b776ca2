"""Which commit of each action a workflow uses, and keeping those that somebody bumped in the committed files."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import msgspec
from packaging.version import Version

from kci.config.settings import KCI_TOML, ActionPin, Actions
from kci.diagnostics import Diagnostic, Span, finding
from kci.errors import FindingsError, UsageError
from kci.files.dated_data import Dated, shipped
from kci.suggest import one_of
from kci.version import REPOSITORY, __version__

OWN = "kci/build"
"""kci's own actions, as templates and kci.toml name them, whatever `REPOSITORY` is; what the files call them is
`Pin.repository`."""

RELEASE_DATA = Path(__file__).parent / "data" / "release.toml"

# `uses: owner/repository/folder@reference  # version`, a line of a step.
_USES = re.compile(
    r"^[ \t]*(?:-[ \t]+)?uses:[ \t]*[\"']?([^\s@#\"']+)@([^\s#\"']+)[\"']?(?:[ \t]+#[ \t]*(.*?))?[ \t]*$", re.MULTILINE
)
_SHA = re.compile(r"[0-9a-f]{40}")
_VERSION = re.compile(r"v\d{1,9}(?:\.\d{1,9})*", re.ASCII)


class Pin(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The commit of an action, and the version that it is.

    Without a commit, workflows name the version's tag.
    """

    sha: str
    version: str
    repository: str = ""
    """Where it is, if that is another place than its name."""


class _OwnActions(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    ref: str
    released: bool


class _PinFile(Dated, frozen=True):
    action: dict[str, Pin]
    own: _OwnActions


class _Release(Dated, frozen=True):
    commit: str
    version: str


class FoundPin(NamedTuple):
    """A pin as written in a file."""

    action: str
    sha: str
    version: str
    path: str
    span: Span


_pin_file = shipped("render/data/pins.toml", _PinFile)


def shipped_pins() -> dict[str, Pin]:
    """The pins that kci ships, by `owner/repository`; from `data/pins.toml`."""
    own = _pin_file().own
    return dict(sorted({**_pin_file().action, OWN: Pin("", own.ref, repository=REPOSITORY)}.items()))


def unreleased(pins: Mapping[str, Pin]) -> str:
    """The reference of kci's own actions, if it is the one that exists only once kci is released; else empty."""
    default, chosen = shipped_pins()[OWN], pins[OWN]
    same = not chosen.sha and (chosen.repository or REPOSITORY, chosen.version) == (default.repository, default.version)
    known = _pin_file().own.released or RELEASE_DATA.is_file()
    return f"{default.repository}@{default.version}" if same and not known else ""


def release_pin() -> Pin:
    """The commit of kci's own actions that this kci was released from; UsageError if it is not a release.

    A commit cannot name itself, so the release workflow puts it into the packages; a checkout has none.
    """
    if not RELEASE_DATA.is_file():
        hint = "install a release, or name the commit in kci.toml: `[actions]` with `ref`"
        raise UsageError(f"kci {__version__} was not installed from a release, and so knows no commit", hint=hint)
    release = shipped(RELEASE_DATA, _Release)()
    return msgspec.structs.replace(shipped_pins()[OWN], sha=release.commit, version=f"v{release.version}")


def action_of(reference: str) -> str:
    """`owner/repository` of a reference: actions in folders of one repository share its commit."""
    return "/".join(reference.split("/")[:2])


def own_pin(wanted: Actions, start: Pin) -> Pin:
    """Kci's own actions as `[actions]` of kci.toml says, where it says something; else as they are."""
    pin = msgspec.structs.replace(start, repository=wanted.repository or start.repository)
    if wanted.ref is None:
        return pin
    commit = bool(_SHA.fullmatch(wanted.ref))
    sha, version = (wanted.ref, wanted.version or "") if commit else ("", wanted.ref)
    return msgspec.structs.replace(pin, sha=sha, version=version)


def fixed_pins(wanted: Mapping[str, ActionPin]) -> dict[str, Pin]:
    """The pins that kci.toml names, of the actions that kci knows."""
    shipped = shipped_pins()
    return {
        action: msgspec.structs.replace(shipped[action], sha=pin.sha, version=pin.version)
        for action, pin in sorted(wanted.items())
        if action in shipped and action != OWN
    }


def unused_pins(wanted: Iterable[str], files: Mapping[str, str]) -> list[Diagnostic]:
    """KCI421 for each action that kci.toml pins and no rendered file uses."""
    used = sorted({action_of(match[1]) for text in files.values() for match in _USES.finditer(text)})
    return [
        finding(
            "KCI421", f"`[actions.pins]` pins {action[:100]}, which no workflow uses", path=KCI_TOML, hint=one_of(used)
        )
        for action in sorted(set(wanted) - set(used))
    ]


def choose_pins(
    files: Mapping[str, str], fixed: Mapping[str, Pin] | None = None, own: Pin | None = None
) -> dict[str, Pin]:
    """The pins to render with: a newer one in the committed files wins over the one that kci ships.

    Args:
        files: the committed workflow files, text by path.
        fixed: pins that win over both; see `fixed_pins`.
        own: what to take for kci's own actions in place of the major tag; see `release_pin` and `own_pin`.

    FindingsError if one action has two pins (KCI403), or a pin lacks its version or contradicts it (KCI404).
    """
    shipped = shipped_pins() | ({OWN: own} if own else {})
    chosen = {**shipped, **(fixed or {})}
    names = {pin.repository or action: action for action, pin in shipped.items()}
    found: dict[str, list[FoundPin]] = {}
    for path in sorted(files):
        for pin in find_pins(files[path], path):
            if (action := names.get(pin.action)) and action not in (fixed or {}):
                found.setdefault(action, []).append(pin)
    problems: list[Diagnostic] = []
    for action, pins in sorted(found.items()):
        first = pins[0]
        wrong = [problem for pin in pins if (problem := _wrong(pin, shipped[action]))]
        problems += wrong
        twin = next((pin for pin in pins if (pin.sha, pin.version) != (first.sha, first.version)), None)
        if wrong:
            continue
        if twin:
            one, other = (f"{pin.version} ({pin.path}:{pin.span.line})" for pin in (first, twin))
            message, hint = f"{action} has two pins: {one} and {other}", "make them the same, usually the newer one"
            problems.append(finding("KCI403", message, hint=hint, path=twin.path, span=twin.span))
        elif not shipped[action].sha or Version(first.version) > Version(shipped[action].version):
            chosen[action] = msgspec.structs.replace(shipped[action], sha=first.sha, version=first.version)
    if problems:
        raise FindingsError("the action pins of the workflow files cannot be kept", diagnostics=problems)
    return chosen


def find_pins(text: str, path: str) -> Iterator[FoundPin]:
    """Every `uses:` that names a commit. Tags and branches are not pins, and re-rendering replaces them."""
    for number, line in enumerate(text.splitlines(), start=1):
        match = _USES.match(line)
        if match and _looks_pinned(match[2]):
            action, ref, comment = match[1], match[2], match[3] or ""
            span = Span(number, match.start(1) + 1, number, match.end(2) + 1)
            yield FoundPin(action_of(action), ref, comment.split(" ")[0], path, span)


def without_pins(text: str) -> str:
    """The text with every well-formed pin taken out, for comparing what is left."""

    def without(match: re.Match[str]) -> str:
        pinned = _SHA.fullmatch(match[2]) and _VERSION.fullmatch(match[3] or "")
        # A line of kci's own actions elsewhere has the comment that their tags have in rendered files.
        own = action_of(match[1]) == OWN and _VERSION.fullmatch(match[2])
        tagged = own or "zizmor: ignore[unpinned-uses]" in (match[3] or "")
        return match[0][: match.end(1) - match.start()] if pinned or tagged else match[0]

    return _USES.sub(without, text)


def repinned(text: str, pins: Mapping[str, Pin], committed: str) -> str:
    """Steps of the repository, with the pins that hold for the file that they are put into.

    An action that kci uses too has kci's pin, so that a file has one for each action; of other actions a newer pin of
    the committed file is kept, as a bot moves it there.
    """
    newest: dict[str, FoundPin] = {}
    for pin in find_pins(committed, ""):
        if _VERSION.fullmatch(pin.version):
            known = newest.get(pin.action)
            newest[pin.action] = pin if known is None or Version(pin.version) > Version(known.version) else known

    def better(match: re.Match[str]) -> str:
        action, version = action_of(match[1]), (match[3] or "").split(" ")[0]
        pin: Pin | FoundPin | None = pins.get(action)
        if pin is None and _VERSION.fullmatch(version):
            moved = newest.get(action)
            pin = moved if moved is not None and Version(moved.version) > Version(version) else None
        if pin is None or not pin.sha or not _looks_pinned(match[2]):
            return match[0]
        return f"{match[0][: match.end(1) - match.start()]}@{pin.sha} # {pin.version}"

    return _USES.sub(better, text)


def _looks_pinned(ref: str) -> bool:
    """A commit, or something of its length that was meant to be one."""
    return len(ref) == 40


def _wrong(pin: FoundPin, shipped: Pin) -> Diagnostic | None:
    if not _SHA.fullmatch(pin.sha):
        message, hint = f"`{pin.sha}` is not a commit", "40 hexadecimal digits in lower case, or remove the line"
    elif not _VERSION.fullmatch(pin.version):
        message = f"the pin of {pin.action} does not say which version it is"
        hint = "put the version behind it, as in `# v1.2.3`"
    elif shipped.sha and (pin.sha == shipped.sha) != (pin.version == shipped.version):
        message = f"the pin of {pin.action} says {pin.version}, and {shipped.version} is {shipped.sha}"
        hint = "commit and version must change together; run the bump again"
    else:
        return None
    return finding("KCI404", message, hint=hint, path=pin.path, span=pin.span)
