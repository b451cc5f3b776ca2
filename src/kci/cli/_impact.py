"""What `kci catalog next` says about a proposed edition."""

from __future__ import annotations

from collections.abc import Sequence

import click

from kci.compat.impact import Impact
from kci.plurals import count


def print_impact(found: Impact, unknown: Sequence[str], *, to_stderr: bool) -> None:
    """Print the variants that come and go by kernel, what building takes, and what a person has to find out."""
    lines = []
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
    lines += [f"unknown: {text}" for text in unknown]
    click.echo("\n".join(lines), err=to_stderr)
