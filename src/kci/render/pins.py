"""Which commit of each action a workflow uses, and keeping those that somebody bumped in the committed files."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import NamedTuple

import msgspec

from kci.config.settings import KCI_TOML, ActionPin
from kci.diagnostics import Diagnostic, Span, finding
from kci.errors import FindingsError, UsageError
from kci.files.dated_data import Dated, load_dated
from kci.suggest import one_of
from kci.version import __version__

OWN = "kci/build"
"""kci's own actions."""

RELEASE_DATA = Path(__file__).parent / "data" / "release.toml"

_USES = re.compile(r"^\s*(?:-\s+)?uses:\s*[\"']?([^\s@#\"']+)@([^\s#\"']+)[\"']?(?:[ \t]+#[ \t]*(.*?))?[ \t]*$")
_SHA = re.compile(r"[0-9a-f]{40}")
_VERSION = re.compile(r"v\d{1,9}(?:\.\d{1,9})*", re.ASCII)


class Pin(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The commit of an action, the version that it is, and the outputs that it sets.

    Without a commit, workflows name the version's tag.
    """

    sha: str
    version: str
    outputs: tuple[str, ...] = ()


class _PinFile(Dated, frozen=True):
    action: dict[str, Pin]


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


@cache
def shipped_pins() -> dict[str, Pin]:
    """The pins that kci ships, by `owner/repository`; from `data/pins.toml`."""
    pins = load_dated(Path(__file__).parent / "data" / "pins.toml", _PinFile).action
    return {name: pins[name] for name in sorted(pins)}


def release_pin() -> Pin:
    """The commit of kci's own actions that this kci was released from; UsageError if it is not a release.

    A commit cannot name itself, so the release workflow puts it into the packages; a checkout has none.
    """
    if not RELEASE_DATA.is_file():
        hint = 'install a release, or name the commit in kci.toml: `[actions."kci/build"]` with `sha` and `version`'
        raise UsageError(f"kci {__version__} was not installed from a release, and so knows no commit", hint=hint)
    release = load_dated(RELEASE_DATA, _Release)
    return msgspec.structs.replace(shipped_pins()[OWN], sha=release.commit, version=f"v{release.version}")


def action_of(reference: str) -> str:
    """`owner/repository` of a reference: actions in folders of one repository share its commit."""
    return "/".join(reference.split("/")[:2])


def fixed_pins(wanted: Mapping[str, ActionPin]) -> dict[str, Pin]:
    """The pins that kci.toml names, of the actions that kci knows."""
    shipped = shipped_pins()
    return {
        action: msgspec.structs.replace(shipped[action], sha=pin.sha, version=pin.version)
        for action, pin in sorted(wanted.items())
        if action in shipped
    }


def unused_pins(wanted: Iterable[str], files: Mapping[str, str]) -> list[Diagnostic]:
    """KCI421 for each action that kci.toml pins and no rendered file uses."""
    lines = (line for text in files.values() for line in text.splitlines())
    used = sorted({action_of(match[1]) for line in lines if (match := _USES.match(line))})
    return [
        finding("KCI421", f"`[actions]` pins {action[:100]}, which no workflow uses", path=KCI_TOML, hint=one_of(used))
        for action in sorted(set(wanted) - set(used))
    ]


def choose_pins(
    files: Mapping[str, str], fixed: Mapping[str, Pin] | None = None, own: Pin | None = None
) -> dict[str, Pin]:
    """The pins to render with: a newer one in the committed files wins over the one that kci ships.

    Args:
        files: the committed workflow files, text by path.
        fixed: pins that win over both; see `fixed_pins`.
        own: what to take for kci's own actions in place of the major tag; see `release_pin`.

    Raises:
        FindingsError: one action has two pins (KCI403), or a pin lacks its version or contradicts it (KCI404).
    """
    shipped = shipped_pins() | ({OWN: own} if own else {})
    chosen = {**shipped, **(fixed or {})}
    found: dict[str, list[FoundPin]] = {}
    for path in sorted(files):
        for pin in find_pins(files[path], path):
            if pin.action in shipped and pin.action not in (fixed or {}):
                found.setdefault(pin.action, []).append(pin)
    problems: list[Diagnostic] = []
    for action, pins in sorted(found.items()):
        first = pins[0]
        wrong = [problem for pin in pins if (problem := _wrong(pin, shipped[action]))]
        problems += wrong
        twin = next((pin for pin in pins if (pin.sha, pin.version) != (first.sha, first.version)), None)
        if wrong:
            continue
        if twin:
            problems.append(_conflict(first, twin))
        elif not shipped[action].sha or _order(first.version) > _order(shipped[action].version):
            chosen[action] = msgspec.structs.replace(shipped[action], sha=first.sha, version=first.version)
    if problems:
        raise FindingsError("the action pins of the workflow files cannot be kept", diagnostics=problems)
    return chosen


def judge_pins(text: str, path: str, fixed: Collection[str] = ()) -> list[Diagnostic]:
    """What a person or a bot has made of the pins in a file that this very kci wrote, well-formed ones only.

    KCI407 is for a pin that is older than the one that kci ships, KCI408 for a commit that kci does not know. Actions
    whose pins kci.toml fixes are not judged.
    """
    found = []
    for pin in find_pins(text, path):
        shipped = shipped_pins().get(pin.action)
        if shipped is None or pin.action in fixed or not shipped.sha or pin.sha == shipped.sha or _wrong(pin, shipped):
            continue
        if _order(pin.version) < _order(shipped.version):
            message = f"{pin.action} is pinned to {pin.version}; kci ships {shipped.version}"
            hint = "say why in a review, or let `kci render --force` bring it back"
            found.append(finding("KCI407", message, hint=hint, path=path, span=pin.span))
        else:
            message = f"kci does not know whether {pin.sha[:12]} is {pin.version} of {pin.action}"
            hint = f"`git ls-remote https://github.com/{pin.action} {pin.version}` tells"
            found.append(finding("KCI408", message, hint=hint, path=path, span=pin.span))
    return found


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
    return "\n".join(_without_pin(line) for line in text.split("\n"))


def _without_pin(line: str) -> str:
    match = _USES.match(line)
    if not match:
        return line
    pinned = _SHA.fullmatch(match[2]) and _VERSION.fullmatch(match[3] or "")
    tagged = action_of(match[1]) == OWN and _VERSION.fullmatch(match[2])
    return line[: match.end(1)] if pinned or tagged else line


def repinned(text: str, pins: Mapping[str, Pin], committed: str) -> str:
    """Steps of the repository, with the pins that hold for the file that they are put into.

    An action that kci uses too has kci's pin, so that a file has one for each action; of other actions a newer pin of
    the committed file is kept, as a bot moves it there.
    """
    newest: dict[str, FoundPin] = {}
    for pin in find_pins(committed, ""):
        if _VERSION.fullmatch(pin.version):
            known = newest.get(pin.action)
            newest[pin.action] = pin if known is None or _order(pin.version) > _order(known.version) else known
    return "\n".join(_repinned_line(line, pins, newest) for line in text.split("\n"))


def _repinned_line(line: str, pins: Mapping[str, Pin], newest: Mapping[str, FoundPin]) -> str:
    match = _USES.match(line)
    if not match or not _looks_pinned(match[2]):
        return line
    action, version = action_of(match[1]), (match[3] or "").split(" ")[0]
    better: Pin | FoundPin | None = pins.get(action)
    if better is None and _VERSION.fullmatch(version):
        moved = newest.get(action)
        better = moved if moved is not None and _order(moved.version) > _order(version) else None
    if better is None or not better.sha:
        return line
    return f"{line[: match.end(1)]}@{better.sha} # {better.version}"


def _looks_pinned(ref: str) -> bool:
    """A commit, or something of its length that was meant to be one."""
    return len(ref) == 40


def _order(version: str) -> tuple[int, ...]:
    numbers = [int(part) for part in version.removeprefix("v").split(".")]
    return tuple(numbers + [0] * (4 - len(numbers)))


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


def _conflict(first: FoundPin, twin: FoundPin) -> Diagnostic:
    message = (
        f"{first.action} has two pins: {first.version} ({first.path}:{first.span.line}) "
        f"and {twin.version} ({twin.path}:{twin.span.line})"
    )
    return finding("KCI403", message, hint="make them the same, usually the newer one", path=twin.path, span=twin.span)
