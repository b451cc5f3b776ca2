"""The mark on a variant that was built for some GPUs only, for its author's own use."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

from kci.tree.findings import tree_error

MARK = "kci-partial.json"
"""Beside metadata.json. The loader does not look at it."""


def mark_partial(variant_dir: Path, archs: Iterable[str]) -> None:
    """Mark a variant before it is sealed.

    Args:
        variant_dir: its directory.
        archs: what was asked for, such as `9.0a`.
    """
    text = json.dumps({"archs": sorted(archs), "note": "made with `kci build --arch`: a part, not to be published"})
    (variant_dir / MARK).write_text(f"{text}\n", encoding="utf-8")


def refuse_partial(variant_dir: Path) -> None:
    """Refuse a variant that is marked.

    Raises:
        FindingsError: it is (KCI617).
    """
    if (variant_dir / MARK).exists():
        message = f"{variant_dir} was built with --arch and lacks code for the other GPUs"
        raise tree_error("KCI617", message, hint="build the variant again without --arch", path=str(variant_dir))
