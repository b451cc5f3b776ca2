"""The editions of build.toml after 5: each is one module here, `edition_<number>`, that `LaterEdition` describes.

Kernels are always held in the form of edition 5, so a module says how its edition reads as that one, and how to write
it. To add an edition, add its module; which edition is written by default is a line of `data/editions.toml`.
"""

from __future__ import annotations

import importlib
import pkgutil
import re
from functools import cache
from pathlib import Path
from typing import Any, Protocol, cast

from kci.config.document import Document, KeyPath
from kci.diagnostics import Diagnostic, Span
from kci.files.dated_data import Dated, load_dated


class TextEdits(Protocol):
    """Changes to the text of a build.toml, as `kci update` collects them."""

    document: Document

    def spans(self, path: KeyPath) -> tuple[Span, Span]:
        """Where key and value at a path stand."""

    def respell(self, path: KeyPath, key: str, value: str, change: str) -> None:
        """Put another key and value where a key stands."""


class LaterEdition(Protocol):
    """What a module of an edition has."""

    def as_edition_5(self, document: Document, data: dict[str, Any]) -> tuple[dict[str, Any], list[Diagnostic]]:
        """The data of a file of the edition as edition 5 has it, and what is wrong with it.

        Args:
            document: the file, for places.
            data: its content; not changed. What is reported as wrong is left out of the answer.
        """

    def write(self, edits: TextEdits) -> None:
        """Turn the text of a valid file of the edition before into this one, the number itself apart."""


class _Written(Dated, frozen=True):
    written: int


@cache
def written_edition() -> int:
    """The edition that kci writes where nobody asks for another."""
    path = Path(__file__).parent.parent / "data" / "editions.toml"
    return load_dated(path, _Written).written


def known_editions() -> list[int]:
    """The editions that have a number kci knows, oldest first."""
    modules = (re.fullmatch(r"edition_([0-9]+)", module.name) for module in pkgutil.iter_modules(__path__))
    return [5, *sorted(int(found[1]) for found in modules if found)]


def later_edition(number: int) -> LaterEdition:
    """The module of an edition after 5 that is one of `known_editions`."""
    return cast("LaterEdition", importlib.import_module(f"{__name__}.edition_{number}"))
