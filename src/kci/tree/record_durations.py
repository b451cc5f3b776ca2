"""Recording how long builds took, for the estimates of later plans.

The tree itself holds no times, so that equal inputs give equal bytes; they go into a file beside it.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from kci.files.replace import write_atomic
from kci.plan.durations import Duration, encode, read_durations
from kci.tree.artifacts import find_sources


def record(path: Path, artifacts: Iterable[Path]) -> None:
    """Write the durations of some artifacts into a file; what it says of other variants stays.

    Args:
        path: the file; it need not exist.
        artifacts: as for a merge. Of several attempts of one variant the newest counts.

    Raises:
        UsageError: an artifact does not exist.
        FindingsError: an artifact or the file cannot be read, or the file cannot be written.
        UnsafeError: an artifact starts with something unsafe.
    """
    earlier = read_durations(path) if path.exists() else ()
    newest: dict[tuple[str, str], Duration] = {}
    for source in sorted(find_sources(artifacts), key=lambda item: item.order, reverse=True):
        leg = source.leg
        if leg.seconds is not None:
            newest[leg.kernel, leg.variant] = Duration(leg.kernel, leg.variant, leg.seconds)
    write_atomic(path, encode(earlier, newest.values()))
