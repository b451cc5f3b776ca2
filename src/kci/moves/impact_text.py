"""A proposed edition of the catalog in words: what it changes, what that takes, and what is not known."""

from __future__ import annotations

from collections.abc import Sequence

from kci.moves.impact import Impact
from kci.plurals import count


def impact_lines(found: Impact, unknown: Sequence[str] = ()) -> list[str]:
    """The variants that come and go by kernel, what building takes, what has to change, and what a person finds out."""
    lines: list[str] = []
    for kernel in found.kernels:
        if not kernel.differs:
            continue
        counts = f"{len(kernel.added)} come, {len(kernel.removed)} go, {len(kernel.changed)} change"
        lines.append(f"{kernel.name}: {counts}, {kernel.same} stay")
        lines += [f"  + {item.name}" for item in kernel.added]
        lines += [f"  - {item.name}" for item in kernel.removed]
        lines += [f"  ~ {item.name}" for item in kernel.changed]
    if not lines:
        lines.append("no variant changes")
    if found.to_build is not None:
        takes = found.to_build
        cost = " + ".join(f"{amount:.2f} {currency}" for currency, amount in sorted(takes.costs.items())) or "no price"
        hours = f"{takes.minutes / 60:.1f} runner hours"
        lines.append(
            f"to build: {count(takes.legs, 'leg')}, about {hours}; {cost} at the prices of {takes.prices_as_of}"
        )
    lines += [f"not estimated: {kernel.kernel or kernel.path}: {kernel.message}" for kernel in found.faulty]
    for needed in found.migrations:
        for item in needed.migrations:
            lines.append(
                f"{needed.kernel}: {item.id}: {item.title}" + (f" (by hand: {item.todo})" if item.todo else "")
            )
    lines += [f"unknown: {text}" for text in unknown]
    return lines
