"""Looks for the edition of the catalog that follows one of kci's, for the people who release kci.

    python bin/next_edition.py FOLDER

FOLDER gets the edition, `changes.md` with what it changes for the examples, and README.md with the
matrix that it gives. The script prints moved=true where users would get other toolchains by it.
.github/workflows/edition.yml runs it each week.

The rule is the reference's: users get the newest two releases of torch. The reference's
`build-variants.json` says which toolkits they get. The wheels alone say which toolkits exist, and
not which of them the reference builds. Most wheels have the flavour in their names, `+cu132`. PyPI
has one build of a release for each system, and only its metadata say for which CUDA; about other
flavours such an index says nothing.
"""

from __future__ import annotations

import datetime
import json
import re
import subprocess
import sys
import tempfile
import urllib.request
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import unquote

import click
from packaging.metadata import parse_email
from packaging.requirements import InvalidRequirement, Requirement

from kci.builders.toolchains.downloads import extract, find_wheel
from kci.config.values import SYSTEMS, Backend, Version
from kci.matrix.catalog.loading import editions, load_catalog
from kci.matrix.catalog.rows import Catalog, Row
from kci.matrix.variants import Kind, cpu_of, digits, parse_variant_name
from kci.plan.workspace import open_workspace

ROOT = Path(__file__).resolve().parent.parent
INDEXES = (
    "https://download.pytorch.org/whl/torch/",
    "https://download.pytorch.org/whl/nightly/torch/",
)
"""Every flavour of torch is on one page: releases, and nightlies."""
TABLE = "https://raw.githubusercontent.com/huggingface/kernels/main/nix-builder/build-variants.json"
RELEASES = 2
"""How many releases of torch users get."""
_MAX_BYTES = 64 * 1024 * 1024
_SECONDS = 120
_ORDER = ("aarch64-darwin", "x86_64-linux", "aarch64-linux", "x86_64-windows", "aarch64-windows")
"""The order in which the reference lists the systems of a row."""
_WHEEL = re.compile(
    r"\btorch-(?P<release>(?P<minor>[0-9]{1,4}\.[0-9]{1,4})(?:\.[0-9]{1,4}){0,2})(?P<pre>(?:a|b|rc)[0-9]{1,4}|\.dev[0-9]{1,12})?"
    r"(?:\+(?P<flavour>[a-z0-9.]{1,30}))?-cp[0-9]{2,4}-[a-z0-9]{2,20}-(?P<platform>[a-z0-9_.]{3,80})\.whl"
)
_SYSTEMS = (
    ("linux", "x86_64", "x86_64-linux"),
    ("linux", "aarch64", "aarch64-linux"),
    ("macosx", "arm64", "aarch64-darwin"),
    ("win", "amd64", "x86_64-windows"),
    ("win", "arm64", "aarch64-windows"),
)
_toml = json.dumps
"""A string, or a list of strings; JSON has them in the same form."""
_TOOLKITS = ("cuda-toolkit", "nvidia-cuda-runtime", "nvidia-cuda-runtime-cu12")
"""What a wheel for CUDA depends on, in the version of the toolkit."""


def read_page(place: str) -> bytes:
    """A page: an address, or a file.

    ClickException: it cannot be read, so that nothing is known about what it lists.
    """
    try:
        if "://" not in place:
            return Path(place).read_bytes()
        if not place.startswith("https://"):
            raise click.ClickException(f"{place} is not asked, because it is not https")
        with urllib.request.urlopen(place, timeout=_SECONDS) as answer:
            body: bytes = answer.read(_MAX_BYTES + 1)
    except OSError as error:
        raise click.ClickException(f"{place} cannot be read: {error}") from None
    if len(body) > _MAX_BYTES:
        raise click.ClickException(f"{place} is larger than {_MAX_BYTES} bytes")
    return body


# --- wheels ---------------------------------------------------------------------------------------


class Wheel(NamedTuple):
    """A kind of torch wheel: all patch releases and Pythons are one."""

    torch: Version
    """Major and minor."""
    final: bool
    """Whether it is a release, and no nightly or release candidate."""
    backend: Backend
    compute: Version | None
    """None where nothing says it: XPU wheels have no version."""
    system: str
    named: bool = True
    """Whether the name says what it is for; False for an index's own build of a release, of which
    the metadata may."""


def read_indexes(places: Iterable[str]) -> set[Wheel]:
    """The wheels in some listings.

    ClickException: one cannot be read, or lists no wheel of torch.
    """
    found: set[Wheel] = set()
    for place in places:
        text = unquote(read_page(place).decode("utf-8", "replace"))
        matches = list(_WHEEL.finditer(text))
        wheels = {wheel for match in matches for wheel in _wheels(match)}
        wheels |= {
            Wheel(torch, True, *own_build(place, release, system), system, named=False)
            for torch, release, system in _own_builds(matches)
        }
        if not wheels:
            raise click.ClickException(f"{place} lists no wheel of torch that kci knows")
        found |= wheels
    return found


def _system(platform: str) -> str | None:
    return next(
        (name for os_, cpu, name in _SYSTEMS if os_ in platform and platform.endswith(cpu)), None
    )


def _own_builds(found: Sequence[re.Match[str]]) -> Iterator[tuple[Version, str, str]]:
    """The newest patch release of each of the newest minor versions that have a build without a
    flavour for Linux.
    """
    finals = [match for match in found if match["pre"] is None]
    offered = sorted({Version.parse(match["minor"]) for match in finals})[-RELEASES:]
    newest: dict[tuple[Version, str], Version] = {}
    for match in finals:
        system, torch = _system(match["platform"]), Version.parse(match["minor"])
        if (
            match["flavour"] is None
            and torch in offered
            and system is not None
            and system.endswith("-linux")
        ):
            release = Version.parse(match["release"])
            newest[torch, system] = max(release, newest.get((torch, system), release))
    for (torch, system), release in sorted(newest.items()):
        yield torch, release.text, system


def _wheels(found: re.Match[str]) -> Iterable[Wheel]:
    flavour, system = found["flavour"] or "", _system(found["platform"])
    if system is None:
        return
    torch, final = Version.parse(found["minor"]), found["pre"] is None
    if system.endswith("darwin") and flavour in ("", "cpu"):
        yield Wheel(torch, final, Backend.CPU, None, system)
        yield Wheel(torch, final, Backend.METAL, None, system)
    elif flavour == "cpu":
        yield Wheel(torch, final, Backend.CPU, None, system)
    elif flavour == "xpu":
        yield Wheel(torch, final, Backend.XPU, None, system)
    elif toolkit := re.fullmatch(r"cu([0-9]{1,3})([0-9])", flavour):
        yield Wheel(torch, final, Backend.CUDA, Version.parse(f"{toolkit[1]}.{toolkit[2]}"), system)
    elif toolkit := re.fullmatch(r"rocm([0-9]{1,3}\.[0-9]{1,3})(?:\.[0-9]{1,3})?", flavour):
        yield Wheel(torch, final, Backend.ROCM, Version.parse(toolkit[1]), system)


def own_build(place: str, release: str, system: str) -> tuple[Backend, Version | None]:
    """What an index's own build of a release is for; some CUDA where its metadata cannot be looked
    at.

    A page that is a file may have the metadata beside it, each in a file as an index serves them,
    `<wheel>.metadata`.
    """
    cpu = cpu_of(system)
    if "://" not in place:
        saved = sorted(Path(place).parent.glob(f"torch-{release}-*_{cpu}.whl.metadata"))
        return built_for(saved[0].read_bytes()) if saved else (Backend.CUDA, None)
    wheel = find_wheel("torch", release, cpu, place.rstrip("/").rpartition("/")[0])
    with tempfile.TemporaryDirectory() as folder:
        extract(
            wheel,
            lambda name: "METADATA" if name.endswith(".dist-info/METADATA") else None,
            Path(folder),
        )
        return built_for((Path(folder) / "METADATA").read_bytes())


def built_for(metadata: bytes) -> tuple[Backend, Version | None]:
    """What a wheel's metadata say that it is for: CUDA of the toolkit that it depends on, or the
    CPU.
    """
    for line in parse_email(metadata)[0].get("requires_dist", []):
        try:
            needed = Requirement(line)
            pins = [pin.version for pin in needed.specifier if pin.operator == "=="]
            if needed.name in _TOOLKITS and pins:
                return Backend.CUDA, Version.parse(Version.parse(pins[0]).minor_text)
        except (InvalidRequirement, ValueError):
            continue
    return Backend.CPU, None


# --- the reference's table ------------------------------------------------------------------------


class Published(NamedTuple):
    """One toolchain of an edition that is made, not read."""

    torch: Version
    backend: Backend
    compute: Version | None
    system: str
    bundled: bool = True
    tvm_ffi: Version | None = None
    unknown_since: str | None = None
    """The day since which no source says whether it has its tvm-ffi."""


def read_table(raw: bytes, known: Iterable[Row]) -> list[Published]:
    """Read the reference's table: by system and backend, the names of the full-ABI variants of a
    release.

    `known` rows say which compute version a shortened one (`xpu20253`) stands for. ClickException:
    it is no such table.
    """
    rows = list(known)
    try:
        table: dict[str, dict[str, list[str]]] = json.loads(raw)
        found = {
            _published(system, backend, name, rows)
            for system, backends in table.items()
            for backend, names in backends.items()
            for name in names
        }
    except (ValueError, AttributeError, TypeError, RecursionError) as error:
        raise click.ClickException(f"not a build-variants.json: {error}") from None
    if not found:
        raise click.ClickException("not a build-variants.json: it names no variant")
    return in_table_order(found)


def in_table_order(rows: Iterable[Published]) -> list[Published]:
    """By torch, backend, compute version and system, as the reference lists them."""
    return sorted(
        rows,
        key=lambda item: (item.torch, item.backend, item.compute or (), _ORDER.index(item.system)),
    )


def _published(system: str, backend: str, name: str, known: list[Row]) -> Published:
    parsed = parse_variant_name(name)
    if parsed.kind is not Kind.FULL or parsed.framework_version is None:
        raise ValueError(f"{name!r} is not a full-ABI variant, and such a table has no others")
    if system not in SYSTEMS or parsed.system != system or parsed.backend != backend:
        raise ValueError(
            f"{name!r} is listed for {system[:40]!r} and {backend[:40]!r}, and is for another"
        )
    torch = Version.parse(parsed.framework_version)
    if parsed.compute_version is None:
        return Published(torch, Backend(backend), None, system)
    # a name has digits alone: 714 is 7.14 of ROCm, as a row says
    written = parsed.compute_version.replace(".", "")
    same = [
        (row.torch == torch, row.compute)
        for row in known
        if row.backend == backend and row.compute and digits(row.compute) == written
    ]
    exact, compute = max(same, default=(False, Version.parse(parsed.compute_version)))
    return Published(
        torch, Backend(backend), compute if exact else Version.parse(compute.minor_text), system
    )


# --- the edition ----------------------------------------------------------------------------------


def propose(
    current: Catalog, wheels: Iterable[Wheel], table: Iterable[Published] = ()
) -> tuple[list[Published], list[str]]:
    """The rows of the next edition, and what neither wheels nor table say: a person has to find it
    out.

    What the edition in force says about toolchains that stay, stays. The table is empty where it is
    unknown.
    """
    listed, published = set(wheels), list(table)
    # A release that the reference has not taken up yet is one that users get no kernels for: it is
    # next.
    finals = sorted(
        {row.torch for row in published} or {wheel.torch for wheel in listed if wheel.final}
    )
    if not finals:
        raise click.ClickException(
            "no release of torch is listed: name the index of releases, not only of nightlies"
        )
    offered = set(finals[-RELEASES:])
    known = {row.key: row for row in current.rows}
    unknown: list[str] = []
    if published:
        bundled = [row for row in published if row.torch in offered]
    else:
        bundled = _existing(current, listed, offered, unknown)
        unknown.append(
            "Without the reference's table: which of these toolkits it builds is not known."
        )
    rows = {row[:4]: row for row in bundled}
    later = {wheel.torch for wheel in listed if wheel.final and wheel.torch > finals[-1]}
    outside = [row._replace(bundled=False) for row in _existing(current, listed, later, unknown)]
    for wheel in sorted(listed, key=str):
        nightly = (
            not wheel.final
            and wheel.torch > finals[-1]
            and wheel.backend in (Backend.CUDA, Backend.ROCM)
        )
        if nightly and wheel.system in _systems(current, wheel.backend):
            outside.append(
                Published(wheel.torch, wheel.backend, wheel.compute, wheel.system, bundled=False)
            )
    for one in outside:
        rows.setdefault(one[:4], one)
    for row in current.rows:  # kept back for users of an older torch, and built on demand
        if not row.bundled and row.torch < finals[-RELEASES:][0]:
            kept = Published(row.torch, row.backend, row.compute, row.system, bundled=False)
            rows.setdefault(kept[:4], kept)
    final = [
        row._replace(tvm_ffi=known[key].tvm_ffi, unknown_since=known[key].tvm_ffi_unknown_since)
        if key in known
        else row
        for key, row in rows.items()
    ]
    return in_table_order(_with_tvm_ffi(current, final, unknown)), unknown


def _unlisted(
    current: Catalog,
    torch: Version,
    systems: set[str],
    found: Sequence[Published],
    unknown: list[str],
) -> list[Published]:
    """The rows for systems of which an index has one build of the release: it says nothing about
    all others.

    What the edition in force has of that release stays. For a new one, that there is a build for
    the CPU is taken over from the release before; a person has to find out about other toolkits.
    """
    known = [row for row in current.rows if row.system in systems]
    stay = [row for row in known if row.torch == torch and row.bundled]
    if stay:
        return [Published(torch, row.backend, row.compute, row.system) for row in stay]
    before = max((row.torch for row in known if row.bundled and row.torch < torch), default=None)
    made: list[Published] = []
    open_: dict[str, None] = {}
    for row in known:
        key = (torch, row.backend, row.compute, row.system)
        if key in {item[:4] for item in found} or not (
            row.torch == torch or (row.torch == before and row.bundled)
        ):
            continue
        if row.backend is Backend.CPU:
            made.append(Published(*key))
            unknown.append(
                f"cpu of torch {torch} on {row.system}: taken over from torch {before}, no index "
                "lists it."
            )
        else:
            open_[" ".join(str(part) for part in (row.backend, row.compute) if part)] = None
    if open_:
        one = (
            f"torch {torch} with {', '.join(open_)}: an index with one build for a system does "
            "not tell."
        )
        unknown.append(f"{one} Add rows for those that exist.")
    return made


def _with_tvm_ffi(
    current: Catalog, rows: Sequence[Published], unknown: list[str]
) -> list[Published]:
    """The rows, and what had a tvm-ffi has it still: its variants do not depend on the torch of the
    row.

    It stays with its toolkit; where that is gone, the newest one of the backend has it, if none
    has. Wheels and table do not say which row has one, so each one that moves or ends is told.
    """
    made = list(rows)
    for old in sorted(current.rows, key=lambda row: str(row.key)):
        if old.tvm_ffi is None:
            continue
        near = [
            at
            for at, row in enumerate(made)
            if (row.backend, row.system) == (old.backend, old.system)
        ]
        same = [at for at in near if made[at].compute == old.compute]
        if any(made[at].tvm_ffi for at in same):
            continue
        of = " ".join(str(part) for part in (old.backend, old.compute) if part)
        gone = (
            f"tvm-ffi {old.tvm_ffi} of {of} on {old.system}: its row, with torch {old.torch}, is "
            "gone"
        )
        if not near:
            unknown.append(
                f"{gone}, and so is its backend there: its variants end. Add a row by hand to "
                "keep them."
            )
        elif not same and any(made[at].tvm_ffi for at in near):
            unknown.append(
                f"{gone}, and no other has that toolkit: its variants end. Those of other "
                "toolkits stay."
            )
        else:
            at = max(
                same or near,
                key=lambda at: (made[at].bundled, made[at].torch, made[at].compute or ()),
            )
            new = " ".join(
                str(part)
                for part in (f"torch {made[at].torch}", *([] if same else [made[at].compute]))
            )
            since = old.tvm_ffi_unknown_since or current.as_of
            made[at] = made[at]._replace(tvm_ffi=old.tvm_ffi, unknown_since=since)
            unknown.append(
                f"{gone}; that with {new} has it here. Does the reference build it there?"
            )
    return made


def _existing(
    current: Catalog, listed: set[Wheel], offered: set[Version], unknown: list[str]
) -> list[Published]:
    """The toolkits that there are for some releases."""
    certain = {
        wheel for wheel in listed if wheel.compute is not None or wheel.backend is not Backend.CUDA
    }
    found = list(_from_wheels(current, certain, offered, unknown))
    for torch in sorted(offered):
        on = {
            wheel.system
            for wheel in listed
            if wheel.torch == torch and wheel.system.endswith("-linux")
        }
        named = {wheel.system for wheel in certain if wheel.torch == torch and wheel.named}
        found += _unlisted(current, torch, on - named, found, unknown)
    return found


def _from_wheels(
    current: Catalog, wheels: set[Wheel], offered: set[Version], unknown: list[str]
) -> Iterable[Published]:
    for torch, final, backend, compute, system, _ in sorted(wheels, key=str):
        if not final or torch not in offered or system not in _systems(current, backend):
            continue
        if backend is not Backend.XPU:
            yield Published(torch, backend, compute, system)
            continue
        same = [row for row in current.rows if row.backend is Backend.XPU and row.torch == torch]
        yield from (Published(row.torch, row.backend, row.compute, row.system) for row in same)
        if not same:
            unknown.append(
                f"XPU with torch {torch}: the wheel does not say which oneAPI; add its row by hand."
            )


def _systems(current: Catalog, backend: Backend) -> set[str]:
    return {row.system for row in current.rows if row.backend is backend and row.bundled}


def edition_toml(
    rows: Iterable[Published],
    unknown: Sequence[str],
    *,
    name: str,
    source: str,
    neighbors: Sequence[str] = (),
) -> str:
    """An edition of the catalog as TOML, named after its day; rows that differ only in compute
    version and system are one.

    The rows are in table order; `neighbors` are the editions next to it.
    """
    groups: dict[Any, list[Version]] = {}
    systems: dict[Any, list[str]] = {}
    for item in rows:
        systems.setdefault(item._replace(system=""), []).append(item.system)
    for (torch, backend, compute, _, bundled, tvm_ffi, since), present in systems.items():
        group = (torch, backend, tuple(present), bundled, tvm_ffi, since)
        groups.setdefault(group, []).extend([compute] if compute else [])
    lines = [
        f"# {line}"
        for line in ("Proposed by bin/next_edition.py: look at it before it is used.", *unknown)
    ]
    lines += [f"name = {_toml(name)}", f"as-of = {name}", f"source = {_toml(source)}"]
    lines += [f"neighbors = {_toml(neighbors)}"] if neighbors else []
    for (torch, backend, on, bundled, tvm_ffi, since), computes in groups.items():
        lines += ["", "[[row]]", f"torch = {_toml(torch.text)}", f"backend = {_toml(backend)}"]
        lines += [f"compute = {_toml([compute.text for compute in computes])}"] if computes else []
        lines += [f"systems = {_toml(on)}"]
        lines += [] if bundled else ["bundled = false"]
        lines += [f"tvm-ffi = {_toml(tvm_ffi.text)}"] if tvm_ffi else []
        lines += [f"tvm-ffi-unknown-since = {_toml(since)}"] if since else []
    return "".join(f"{line}\n" for line in lines)


def changes(before: str, after: str) -> list[str]:
    """The variants that come and go for the examples."""
    lines: list[str] = []
    both = (
        open_workspace([str(ROOT / "examples")], catalog=name).matrix().kernels
        for name in (before, after)
    )
    now, then = (
        {kernel.name: {item.name for item in kernel.variants} for kernel in kernels}
        for kernels in both
    )
    for kernel, names in sorted(now.items()):
        come, go = sorted(then[kernel] - names), sorted(names - then[kernel])
        if come or go:
            lines.append(
                f"{kernel}: {len(come)} come, {len(go)} go, {len(names & then[kernel])} stay"
            )
            lines += [*(f"  + {name}" for name in come), *(f"  - {name}" for name in go)]
    return lines or ["no variant changes"]


def readme(edition: Path) -> str:
    """README.md with the matrix that an edition gives."""

    def shown(found: re.Match[str]) -> str:
        command = [sys.executable, "-m", "kci", *found[2].split(), "--catalog", str(edition)]
        return (
            found[1]
            + subprocess.run(
                command, check=True, stdout=subprocess.PIPE, cwd=ROOT, encoding="utf-8"
            ).stdout
        )

    text = (ROOT / "README.md").read_text(encoding="utf-8")
    text, made = re.subn(
        r"(^\$ kci (matrix .*)\n)(?:(?!```).*\n)*", shown, text, count=1, flags=re.MULTILINE
    )
    assert made, "README.md shows no matrix"
    return text


@click.command()
@click.argument("folder", type=click.Path(path_type=Path))
@click.option(
    "--index",
    "indexes",
    multiple=True,
    help="A page that lists wheels of torch: a file or an address.",
)
@click.option("--table", help="The reference's build-variants.json: a file or an address.")
@click.option(
    "--after", "current", help="The edition that it follows (default: kci's default edition)."
)
def main(folder: Path, indexes: tuple[str, ...], table: str | None, current: str | None) -> None:
    """Write the next edition, and what it changes, into FOLDER."""
    before = load_catalog(current)
    pages = indexes or INDEXES
    table = table or (None if indexes else TABLE)
    known = [row for edition in editions() for row in load_catalog(edition).rows]
    rows, unknown = propose(
        before, read_indexes(pages), read_table(read_page(table), known) if table else []
    )
    today = datetime.datetime.now(datetime.UTC).date().isoformat()
    source = ", ".join(
        place if "://" in place else Path(place).name for place in [*pages, *filter(None, [table])]
    )
    folder.mkdir(parents=True, exist_ok=True)
    edition = folder / f"{today}.toml"
    text = edition_toml(rows, unknown, name=today, source=source, neighbors=[before.name])
    edition.write_text(text, encoding="utf-8")
    said = "\n".join(
        [*changes(before.name, str(edition)), *(f"unknown: {line}" for line in unknown)]
    )
    top = "What is unknown is to be filled in by hand. To have this checked, close and reopen it."
    (folder / "changes.md").write_text(f"{top}\n```text\n{said}\n```\n", encoding="utf-8")
    (folder / "README.md").write_text(readme(edition), encoding="utf-8")
    both = (before, load_catalog(str(edition)))
    now, then = ({(row.key, row.tvm_ffi) for row in one.rows if row.bundled} for one in both)
    click.echo(said, err=True)
    click.echo(f"moved={str(now != then).lower()}")


if __name__ == "__main__":
    main()
