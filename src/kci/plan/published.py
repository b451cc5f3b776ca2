"""Which variants need not be built, because they are published already."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import msgspec

from kci.inputs.recorded import RecordedInputs
from kci.plan.fingerprint import Fingerprints
from kci.plurals import count

Key = tuple[str, str]
"""A kernel's name and a variant's."""


class PublishedVariant(msgspec.Struct, frozen=True):
    """A variant that is published and whole."""

    fingerprint: str
    """What it was made from, as the plan of its run said."""
    inputs: RecordedInputs | None = None
    """What its build really read."""


class Already(msgspec.Struct, frozen=True):
    """What need not be built."""

    reasons: dict[Key, str]
    """Why, for each variant."""
    fingerprints: dict[Key, str]
    """The fingerprints of all variants; of these the published ones, so that merging knows them again."""


def already(
    fingerprints: Mapping[Key, str], known: Mapping[Key, PublishedVariant], prints_of: Callable[[str], Fingerprints]
) -> Already:
    """The variants that need not be built.

    Args:
        fingerprints: what is planned, and what it would be made from.
        known: what is published.
        prints_of: the files of a kernel by its name, to compare them with what a build read.

    Raises:
        FindingsError: a file cannot be read.
    """
    reasons: dict[Key, str] = {}
    kept: dict[Key, str] = {}
    for key, now in fingerprints.items():
        found = known.get(key)
        if found is None:
            continue
        if found.fingerprint == now:
            reasons[key] = f"published already with the same fingerprint, {now[:12]}"
        elif found.inputs is not None and prints_of(key[0]).still_holds(now, found.fingerprint, found.inputs.files):
            read = count(len(found.inputs.files), "file")
            reasons[key] = f"published already, and nothing changed in the {read} that its build read"
            kept[key] = found.fingerprint
    return Already(reasons, {**fingerprints, **kept})
