"""The commit of each action in a workflow; newer pins in the committed files are kept."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path

import msgspec
from packaging.version import Version

from kci.config.settings import ActionPin, Actions
from kci.errors import UsageError
from kci.utils.shipped import Dated, shipped
from kci.version import REPOSITORY, __version__

OWN = "kci/build"

RELEASE_DATA = Path(__file__).parent / "data" / "release.toml"

# `uses: owner/repository/folder@reference  # version`, a line of a step.
_USES = re.compile(
    r"^[ \t]*(?:-[ \t]+)?uses:[ \t]*[\"']?([^\s@#\"']+)@([^\s#\"']+)[\"']?(?:[ \t]+#[ \t]*(.*?))?[ \t]*$", re.MULTILINE
)
_SHA = re.compile(r"[0-9a-f]{40}")
_VERSION = re.compile(r"v\d{1,9}(?:\.\d{1,9})*", re.ASCII)


class Pin(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The commit and version of an action; without a commit, workflows name the version's tag."""

    sha: str
    version: str
    repository: str = ""


class _OwnActions(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    ref: str
    released: bool


class _PinFile(Dated, frozen=True):
    action: dict[str, Pin]
    own: _OwnActions


class _Release(Dated, frozen=True):
    commit: str
    version: str


_pin_file = shipped("workflows/data/pins.toml", _PinFile)


def shipped_pins() -> dict[str, Pin]:
    """The pins of `data/pins.toml`, by `owner/repository`."""
    own = _pin_file().own
    return dict(sorted({**_pin_file().action, OWN: Pin("", own.ref, repository=REPOSITORY)}.items()))


def unreleased(pins: Mapping[str, Pin]) -> str:
    """The reference of kci's own actions if it names a release that does not exist yet; else empty."""
    default, chosen = shipped_pins()[OWN], pins[OWN]
    same = not chosen.sha and (chosen.repository or REPOSITORY, chosen.version) == (default.repository, default.version)
    released = _pin_file().own.released or RELEASE_DATA.is_file()
    return f"{default.repository}@{default.version}" if same and not released else ""


def release_pin() -> Pin:
    """The pin of kci's own actions at this release, from its package; UsageError for a checkout."""
    if not RELEASE_DATA.is_file():
        hint = "install a release, or name the commit in kci.toml: `[actions]` with `ref`"
        raise UsageError(f"kci {__version__} was not installed from a release, and so knows no commit", hint=hint)
    release = shipped(RELEASE_DATA, _Release)()
    return msgspec.structs.replace(shipped_pins()[OWN], sha=release.commit, version=f"v{release.version}")


def action_of(reference: str) -> str:
    """`owner/repository` of a reference: actions in folders of one repository share its commit."""
    return "/".join(reference.split("/")[:2])


def own_pin(wanted: Actions, start: Pin) -> Pin:
    """The pin of kci's own actions, with what `[actions]` of kci.toml overrides."""
    pin = msgspec.structs.replace(start, repository=wanted.repository or start.repository)
    if wanted.ref is None:
        return pin
    commit = bool(_SHA.fullmatch(wanted.ref))
    sha, version = (wanted.ref, "") if commit else ("", wanted.ref)
    return msgspec.structs.replace(pin, sha=sha, version=version)


def fixed_pins(wanted: Mapping[str, ActionPin]) -> dict[str, Pin]:
    """The pins of kci.toml for the actions that kci uses."""
    shipped = shipped_pins()
    return {
        action: msgspec.structs.replace(shipped[action], sha=pin.sha, version=pin.version)
        for action, pin in sorted(wanted.items())
        if action in shipped and action != OWN
    }


def choose_pins(
    files: Mapping[str, str], fixed: Mapping[str, Pin] | None = None, own: Pin | None = None
) -> dict[str, Pin]:
    """The pins to render with: `fixed`, else the newer of the committed and the shipped (`own` for kci's actions)."""
    shipped = shipped_pins() | ({OWN: own} if own else {})
    chosen = {**shipped, **(fixed or {})}
    names = {pin.repository or action: action for action, pin in shipped.items()}
    for text in files.values():
        for reference, committed_pin in find_pins(text):
            action = names.get(reference, "")
            if action not in shipped or action in (fixed or {}) or committed_pin.sha == shipped[action].sha:
                continue
            if not chosen[action].sha or Version(committed_pin.version) > Version(chosen[action].version):
                chosen[action] = msgspec.structs.replace(
                    shipped[action], sha=committed_pin.sha, version=committed_pin.version
                )
    return chosen


def find_pins(text: str) -> Iterator[tuple[str, Pin]]:
    """Each `uses:` with a commit and a version comment, by `owner/repository`."""
    for match in _USES.finditer(text):
        version = (match[3] or "").split(" ")[0]
        if _SHA.fullmatch(match[2]) and _VERSION.fullmatch(version):
            yield action_of(match[1]), Pin(match[2], version)


def without_pins(text: str) -> str:
    """The text without its well-formed pins, for comparison."""

    def without(match: re.Match[str]) -> str:
        pinned = _SHA.fullmatch(match[2]) and _VERSION.fullmatch(match[3] or "")
        # Rendered files give the tags of kci's own actions this comment.
        own = action_of(match[1]) == OWN and _VERSION.fullmatch(match[2])
        tagged = own or "zizmor: ignore[unpinned-uses]" in (match[3] or "")
        return match[0][: match.end(1) - match.start()] if pinned or tagged else match[0]

    return _USES.sub(without, text)


def apply_pins(text: str, pins: Mapping[str, Pin], committed: str) -> str:
    """The repository's own steps with kci's pins for actions that kci uses; of others a newer committed pin is kept."""
    newest: dict[str, Pin] = {}
    for action, pin in find_pins(committed):
        if action not in newest or Version(pin.version) > Version(newest[action].version):
            newest[action] = pin

    def better(match: re.Match[str]) -> str:
        action, version = action_of(match[1]), (match[3] or "").split(" ")[0]
        pin = pins.get(action)
        if pin is None and _VERSION.fullmatch(version):
            moved = newest.get(action)
            pin = moved if moved is not None and Version(moved.version) > Version(version) else None
        if pin is None or not pin.sha or len(match[2]) != 40:
            return match[0]
        return f"{match[0][: match.end(1) - match.start()]}@{pin.sha} # {pin.version}"

    return _USES.sub(better, text)
