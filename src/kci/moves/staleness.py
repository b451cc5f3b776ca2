"""What is behind the world: the catalog, action pins, images, sources behind their upstream, unsigned variants."""

from __future__ import annotations

import enum
import tempfile
from collections.abc import Callable, Iterator, Sequence
from datetime import date, datetime
from pathlib import Path

import msgspec

from kci.catalog.loading import freshness
from kci.config.reader import Kernel
from kci.errors import FindingsError
from kci.files.git import last_line, remote_git, run_git
from kci.hub.held import Holding
from kci.moves.image_registry import ImageReference, parse_image
from kci.plurals import count
from kci.workspace.workspace import Workspace


class BehindKind(enum.StrEnum):
    """What something is behind of."""

    CATALOG = "catalog"
    IMAGE = "image"
    UPSTREAM = "upstream"
    SIGNATURE = "signature"
    UNKNOWN = "unknown"
    """It could not be found out, which is not the same as being up to date."""


class Behind(msgspec.Struct, frozen=True):
    """One thing that is behind."""

    kind: BehindKind
    subject: str
    """The edition, file, kernel or variant."""
    message: str
    command: str = ""
    """What shows or closes it; empty where that takes a person."""


Newest = Callable[[str], datetime | str]
"""The date of the newest commit of a repository, or why it is not known."""


Tagged = Callable[[ImageReference], str]
"""The digest that the tag of a pinned image means now, empty if it is the pinned one; see `behind_tag`."""


def behind(
    workspace: Workspace,
    holdings: Sequence[tuple[Kernel, Holding]],
    today: date,
    newest: Newest | None,
    tagged: Tagged | None = None,
) -> list[Behind]:
    """Everything that is behind, by kind.

    `holdings` is what is published; without `newest` no upstream is asked, and without `tagged` no registry.
    """
    found = [*_catalog(workspace, today)]
    if tagged is not None:
        found += _images(workspace, tagged)
    if newest is not None:
        for kernel in workspace.kernels:
            found += _upstreams(kernel, newest)
    for kernel, holding in holdings:
        found += _signatures(kernel, holding)
    return found


def _catalog(workspace: Workspace, today: date) -> Iterator[Behind]:
    fresh = freshness(workspace.catalog, today)
    if fresh.outdated:
        newer = f"; kci has {', '.join(fresh.newer)}" if fresh.newer else ""
        message = f"{count(fresh.days, 'day')} old, and outdated after {fresh.most}{newer}"
        yield Behind(BehindKind.CATALOG, fresh.name, message, "kci catalog outdated")


def _images(workspace: Workspace, tagged: Tagged) -> Iterator[Behind]:
    """Every image in force that is pinned to a digest, once, with what it is for."""
    places: dict[str, list[str]] = {}
    for backend, build in sorted(workspace.runners.build.items()):
        for image in sorted({*build.image.values(), *(one for some in build.images.values() for one in some.values())}):
            if "@" in image:
                places.setdefault(image, []).append(backend)
    for image, backends in places.items():
        parsed, what = parse_image(image), f"for {', '.join(backends)}"
        try:
            if parsed is None:
                raise FindingsError("it is not the name of an image")
            now = tagged(parsed)
        except FindingsError as error:
            yield Behind(BehindKind.UNKNOWN, image, f"{what}: {error.message}")
            continue
        if now:
            yield Behind(BehindKind.IMAGE, image, f"{what}: the tag {parsed.tag} is {now} now")


def _upstreams(kernel: Kernel, newest: Newest) -> Iterator[Behind]:
    urls = kernel.build.general.upstream or ()
    raw = run_git(Path(kernel.directory), "log", "-1", "--format=%cI", "--", ".") if urls else None
    name = kernel.build.name
    if urls and not raw:
        yield Behind(BehindKind.UNKNOWN, name, "no commit says when its sources changed last")
        return
    for url in urls:
        there = newest(url)
        if isinstance(there, str):
            yield Behind(BehindKind.UNKNOWN, name, f"{url}: {there}")
        elif there > (own := datetime.fromisoformat((raw or b"").decode("ascii", "replace").strip())):
            message = f"{url} has a commit of {there.date()}, the kernel's sources are of {own.date()}"
            yield Behind(BehindKind.UPSTREAM, name, message)


def _signatures(kernel: Kernel, holding: Holding) -> Iterator[Behind]:
    for held in holding.variants:
        if held.signer is None and not held.problem:
            message = f"{holding.source} has it without a signature"
            yield Behind(BehindKind.SIGNATURE, f"{kernel.build.name} {held.variant}", message, "kci sign")


def newest_commit(url: str) -> datetime | str:
    """The date of the newest commit on the main branch of a repository, or why it cannot be told.

    Only that commit is fetched, without its files.
    """
    only = {"GIT_ALLOW_PROTOCOL": "https:ssh:git"}
    with tempfile.TemporaryDirectory(prefix="kci-upstream-") as folder:
        place = Path(folder)
        for command in (
            ("init", "--quiet", "--bare"),
            ("fetch", "--quiet", "--depth=1", "--filter=tree:0", "--end-of-options", url, "HEAD"),
            ("log", "-1", "--format=%cI", "FETCH_HEAD"),
        ):
            done = remote_git(place, *command, environment=only)
            if done.returncode != 0:
                return last_line(done.stderr) or "git cannot read it"
        return datetime.fromisoformat(done.stdout.strip())
