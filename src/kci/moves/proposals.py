"""What a moved range of toolchains asks of a repository: pull requests with the next edition, and with migrations."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import msgspec
import tomli

from kci.catalog.listings import usual_listings
from kci.catalog.overlay import is_overlay
from kci.catalog.rows import Catalog
from kci.config.document import read_document
from kci.config.reader import BUILD_TOML
from kci.config.settings import KCI_TOML
from kci.config.values import PullRequests
from kci.diagnostics import printable
from kci.errors import FindingsError
from kci.matrix.migrations import whole_change
from kci.moves.next_catalog import NextCatalog, impact, impact_lines, next_catalog
from kci.moves.pull_requests import EDITION_BRANCH, MIGRATE, FileChange, WantedPull, digest_of
from kci.workspace.migrating import KernelMigrations, migrations_of
from kci.workspace.workspace import Workspace

CATALOG_FILE = "kci-catalog.toml"
"""Where the edition is written in a repository without one of its own."""

_MAX_BODY = 50_000
# The key `catalog` at the beginning of a line, with a string in either kind of quotes.
_TOP_KEY = re.compile(r"""^catalog[ \t]*=[ \t]*("[^"\n]*"|'[^'\n]*')""", re.MULTILINE)
_WAKE = (
    "GitHub starts no workflow for what its own token has opened. To have this checked, close and reopen it, or push a "
    "commit. kci keeps it up to date until somebody else commits to it, and does not open it again once it was closed."
)


class WantedMoves(msgspec.Struct, frozen=True):
    """What kci proposes."""

    wanted: tuple[WantedPull, ...]
    by_hand: tuple[str, ...]
    """What takes a person, a line each."""


def wanted_moves(workspace: Workspace, day: str) -> WantedMoves:
    """The pull requests that should be open, as far as kci.toml lets them be; a new edition is named after the day.

    FindingsError if a listing cannot be read, so that nothing is known; or the catalog is one that kci cannot write.
    """
    moves = workspace.settings.settings.schedule.moves
    if moves.pull_requests == PullRequests.NONE:
        return WantedMoves((), ())
    usual = usual_listings()
    table = moves.table or (None if moves.indexes else usual.table)
    root = workspace.settings.root
    proposal = next_catalog(workspace, day, moves.indexes or usual.indexes, table, root)
    wanted, after = [], workspace.catalog
    if set(_offered(workspace.catalog)) != set(_offered(proposal.catalog)):
        wanted.append(_edition(workspace, proposal))
        after = proposal.catalog
    if moves.pull_requests != PullRequests.KERNELS:
        return WantedMoves(tuple(wanted), ())
    needed = migrations_of(workspace, after, moves.migrations)
    names = Counter(item.kernel for item in needed)
    wanted += [pull for item in needed if (pull := _kernel(item, root, alone=names[item.kernel] == 1)) is not None]
    by_hand = [
        f"{item.kernel}: {one.title}: {one.todo}" for item in needed for one in item.migrations if one.change is None
    ]
    return WantedMoves(tuple(wanted), tuple(by_hand))


# --- the edition ------------------------------------------------------------------------------------------------------


def _edition(workspace: Workspace, proposal: NextCatalog) -> WantedPull:
    found = impact(workspace, proposal.catalog)
    torches = sorted({row.torch for row in proposal.catalog.rows if row.bundled})
    offered = ", ".join(torch.text for torch in torches)
    about = digest_of("\n".join(sorted(" ".join(map(str, row)) for row in _offered(proposal.catalog))))
    path, settings = _catalog_place(workspace)
    files = [FileChange(path, proposal.text), *settings]
    lines = impact_lines(found, proposal.unknown)
    body = f"The range of toolchains has moved: torch {offered}. What that changes for the kernels here:\n\n"
    body += _fenced(lines) + f"\n\nLook at `{path}` before it is merged: `kci catalog check {path}`.\n\n{_WAKE}\n"
    rows = proposal.text.partition("[[row]]")[2]  # without name and date, which are others every day
    content = digest_of("\0".join([body, path, rows, *(file.text for file in settings)]))
    return WantedPull(EDITION_BRANCH, about, f"Toolchains: torch {offered}", body, tuple(files), content)


def _offered(catalog: Catalog) -> list[tuple[object, ...]]:
    """What users get; the toolchains that only the compat tier tests come and go more often."""
    return [(*row.key, row.tvm_ffi) for row in catalog.rows if row.bundled]


def _catalog_place(workspace: Workspace) -> tuple[str, list[FileChange]]:
    """Where the edition goes, and kci.toml if it has to name that."""
    found, file = workspace.settings, workspace.catalog_file
    if file is not None:
        try:
            path = file.resolve().relative_to(found.root.resolve()).as_posix()
        except ValueError:
            hint = "keep the catalog in the repository"
            raise FindingsError(f"the catalog {file} is outside of the repository", hint=hint) from None
        if is_overlay(read_document(file, path)):
            hint = "move its changes to [[overlay]] in kci.toml, and name an edition there"
            raise FindingsError(f"{path} is an overlay of an edition, and kci writes editions", hint=hint)
        return path, []
    assert found.document is not None  # noqa: S101  - without kci.toml nothing is proposed
    old = found.document.text
    line = f'catalog = "{CATALOG_FILE}"'
    text = _TOP_KEY.sub(lambda _: line, old, count=1) if "catalog" in found.document.data else f"{line}\n{old}"
    if tomli.loads(text) != {**found.document.data, "catalog": CATALOG_FILE}:
        raise FindingsError(f"kci cannot change {KCI_TOML}", hint=f"write {line} into it")
    return CATALOG_FILE, [FileChange(KCI_TOML, text)]


# --- the kernels ------------------------------------------------------------------------------------------------------


def _kernel(needed: KernelMigrations, root: Path, *, alone: bool) -> WantedPull | None:
    change, file = whole_change(needed.migrations), Path(needed.directory) / BUILD_TOML
    if change is None or file.is_symlink():
        return None
    try:
        path = file.resolve().relative_to(root.resolve()).as_posix()
    except ValueError:
        return None
    branch = MIGRATE + needed.kernel + ("" if alone else f"-{digest_of(path)[:6]}")
    done = [item for item in needed.migrations if item.change is not None]
    about = digest_of("\n".join([path, *sorted(f"{item.id}: {item.title}" for item in done)]))
    lines = [f"{item.id}: {item.title}. {item.reason[:1].upper()}{item.reason[1:]}." for item in done]
    lines += [f"by hand: {item.title}: {item.todo}" for item in needed.migrations if item.change is None]
    body = f"What `{path}` needs for the toolchains of today:\n\n{_fenced(lines)}\n\n"
    if any(item.waits for item in done):
        body += f"Merge it after the pull request from `{EDITION_BRANCH}`: before that some of it is too early.\n\n"
    title = f"{needed.kernel}: {done[0].title}" + (f" and {len(done) - 1} more" if len(done) > 1 else "")
    body += _WAKE + "\n"
    text = change.after.decode("utf-8")
    files = (FileChange(path, text, executable=bool(file.stat().st_mode & 0o100)),)
    return WantedPull(branch, about, printable(title, " ")[:200], body, files, digest_of("\0".join([body, path, text])))


def _fenced(lines: Sequence[str]) -> str:
    """Lines in a block of code, in which nothing is a link or a mention; no line can end it."""
    kept: list[str] = []
    size = 0
    for line in lines:
        size += len(line) + 1
        if size > _MAX_BODY:
            kept.append(f"... and {len(lines) - len(kept)} lines more: `kci catalog next` prints them")
            break
        kept.append(printable(line, " ").replace("```", "'''"))
    return "\n".join(["```text", *kept, "```"])
