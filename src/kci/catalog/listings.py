"""The pages from which the next edition is made: files, or addresses that are asked now."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from kci.errors import FindingsError
from kci.files.bounded_json import read_bounded
from kci.files.dated_data import Dated, load_dated
from kci.files.small_fetch import MAX_BYTES, fetch

_OK = 200


class Listings(Dated, frozen=True):
    """`data/indexes.toml`: where the wheels of torch are listed, and the reference's table."""

    indexes: tuple[str, ...]
    table: str


@cache
def usual_listings() -> Listings:
    """The data that kci ships."""
    return load_dated(Path(__file__).parent / "data" / "indexes.toml", Listings)


def read_listing(place: str, root: Path = Path()) -> bytes:
    """A page.

    Args:
        place: an address, or a file.
        root: what a file's name is relative to.

    Raises:
        FindingsError: it cannot be read, so that nothing is known about what it lists.
    """
    if "://" in place:
        answer = fetch(place)
        if answer.status != _OK:
            raise FindingsError(
                f"{place}: the server says {answer.status}", hint="nothing is known about what it lists"
            )
        return answer.body
    try:
        return read_bounded(root / place, MAX_BYTES)
    except (OSError, ValueError) as error:
        raise FindingsError(f"{root / place} cannot be read: {getattr(error, 'strerror', None) or error}") from None
