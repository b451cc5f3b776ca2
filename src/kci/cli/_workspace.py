"""Options that select kernels and variants, and opening their workspace."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import click

from kci.cli import PATH, FileName, choice_option, flag, option, repeated
from kci.cli._output import print_kernel_findings
from kci.config.discovery import find_kernels, invalid_kernels_error
from kci.config.reader import BUILD_TOML
from kci.config.values import SYSTEMS, Tier
from kci.errors import UsageError
from kci.plan.workspace import BACKENDS, Choice, Workspace, open_workspace


def _require_place(_context: click.Context, _parameter: click.Parameter, place: Path) -> Path:
    if not place.exists():
        raise UsageError(
            f"{place}: there is no such directory", "name a directory with a build.toml, or a tree"
        )
    return place


PLACE = click.argument(
    "place", type=PATH, default=".", metavar="[KERNEL|TREE]", callback=_require_place
)
KERNELS = click.argument("kernels", nargs=-1, type=FileName(), metavar="[KERNEL]...")
CATALOG = option("--catalog", "FILE", "A catalog file, or an edition's name.", type=FileName())
JOBS = click.option(
    "--jobs",
    type=click.IntRange(1),
    help="How many compilers run in parallel (default: from cores and memory).",
)
ISOLATION = click.option(
    "--no-isolation",
    "isolation",
    is_flag=True,
    callback=lambda _context, _parameter, said: not said,
    help="Compile against this Python's torch instead of a torch that kci installs.",
)
TIER = option(
    "--tier",
    "TIER",
    f"How much to build: {', '.join(Tier)}, or a custom tier from kci.toml.",
    default="release",
    show_default=True,
)
SYSTEM = choice_option("--system", "systems", "Only this system.", of=SYSTEMS, multiple=True)
ALLOW_EMPTY = flag("--allow-empty", "Exit 0 if no variant is selected.")


def selection_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add `--kernel`, `--tier`, `--backend`, `--only`, `--where` and `--catalog`; see
    `open_selection`.
    """
    added = (
        repeated("--kernel", "names", "NAME", "Only the kernel of this name."),
        TIER,
        choice_option("--backend", "backends", "Only this backend.", of=BACKENDS, multiple=True),
        repeated("--only", "GLOB", "Only variants whose name matches."),
        repeated(
            "--where", "EXPR", "Only variants that match, such as 'cuda>=13.0 and torch==newest'."
        ),
        CATALOG,
    )
    for decorate in reversed(added):
        command = decorate(command)
    return command


def locate_tree(place: Path, kernel: Path | None) -> tuple[Path, Path | None]:
    """The tree and, if known, the kernel that the arguments mean: `PLACE` is a kernel with a
    `build/`, or a tree; else it stands for the kernel below or around it.
    """
    from kci.tree import manifest, metadata  # `kci matrix` does without

    own = (BUILD_TOML, manifest.FILE_NAME, metadata.FILE_NAME, f"*/{metadata.FILE_NAME}")
    if not kernel and not any(any(place.glob(name)) for name in own):
        found = find_kernels([str(place)])
        if len(found) > 1:
            raise UsageError(f"{place} has {len(found)} kernels", f"name one, such as {found[0]}")
        place = Path(found[0])
    sources = place if (place / BUILD_TOML).is_file() else kernel
    return place / "build" if sources == place else place, sources


def open_selection(
    kernels: Sequence[str], selection: dict[str, Any], *, set_aside: bool = False
) -> tuple[Workspace, Choice]:
    """The workspace and the choice that `selection_options` stand for; prints its diagnostics."""
    texts, names = selection["where"], selection["names"]
    where = " or ".join(f"({text})" for text in texts) if len(texts) > 1 else "".join(texts)
    given = {name: selection[name] for name in Choice.__struct_fields__ if name in selection}
    workspace = open_workspace(
        kernels, catalog=selection["catalog"], set_aside=set_aside or bool(names)
    )
    if names:
        workspace = workspace.only(names)
        if workspace.unread and not set_aside:
            raise invalid_kernels_error(workspace.unread, len(names))
    print_kernel_findings(workspace.diagnostics)
    return workspace, Choice(**given | {"where": where if texts else None})


def load_workspace(*kernels: str) -> Workspace:
    """Open a workspace and print its diagnostics."""
    workspace = open_workspace(kernels)
    print_kernel_findings(workspace.diagnostics)
    return workspace
