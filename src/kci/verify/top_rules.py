"""What lies at a tree's top besides variants and the manifest: the checksums, computed again, and the card."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path

from kci.diagnostics import Diagnostic, finding
from kci.errors import FindingsError
from kci.files.bounded_json import read_bounded
from kci.tree.checksums import FORMS, SUMMED_AT_TOP, tree_hashes
from kci.tree.tree_top import CARD
from kci.verify.subject import VariantDir

_CARD_BYTES = 1024 * 1024
_HEADER = re.compile(r"\s*---[ \t]*\r?\n(.*?)\r?\n---[ \t]*(\r?\n|\Z)", re.DOTALL)
"""The YAML in front of a card, as the Hub finds it."""


def check_checksums(
    tree: Path, shown: str, variants: Sequence[VariantDir], reported: Collection[str], *, merged: bool
) -> Iterator[Diagnostic]:
    """Hold `SHA256SUMS` and `kci-subjects.json` to the files.

    Args:
        tree: the tree.
        shown: its path for diagnostics.
        variants: its variants.
        reported: variants that are not what the manifest says: what else speaks of them says nothing new.
        merged: whether the tree has a manifest, and so has to have these too.
    """
    if any(variant.hashes is None for variant in variants):
        return  # reported when the directory was read
    try:
        hashes = {variant.path.name: variant.hashes or {} for variant in variants}
        there = tree_hashes(hashes, {name: tree / name for name in SUMMED_AT_TOP if (tree / name).exists()})
    except FindingsError as error:
        yield finding("KCI700", error.message.replace(str(tree), shown), path=shown)
        return
    for name, form in FORMS.items():
        try:
            said = form.decode(read_bounded(tree / name, 2 * len(form.encode(there)) + 65536))
        except FileNotFoundError:
            if merged:
                yield finding("KCI726", f"there is no {name}", path=shown)
            continue
        except (OSError, ValueError) as error:
            yield finding("KCI726", f"it is not what kci writes: {error}", path=f"{shown}/{name}")
            continue
        wrong = [
            file
            for file in sorted(said.keys() | there.keys())
            if said.get(file) != there.get(file) and file.partition("/")[0] not in reported
        ]
        if wrong:
            yield finding("KCI726", _difference(wrong, said, there), path=f"{shown}/{name}")


def _difference(wrong: Sequence[str], said: Collection[str], there: Collection[str]) -> str:
    first = wrong[0]
    what = "has another hash" if first in there else "is no file of the tree"
    more = f" (and {len(wrong) - 1} more)" if len(wrong) > 1 else ""
    return (f"{first!r} {what}" if first in said else f"it says nothing of {first!r}") + more


def check_card(tree: Path, shown: str) -> Iterator[Diagnostic]:
    """The rule about a tree's card: the Hub takes it for a front page, after the binaries are there."""
    path = tree / CARD
    if path.is_symlink() or not path.exists():
        return
    try:
        text = read_bounded(path, _CARD_BYTES).decode("utf-8")
        reason = _header_problem(text)
    except UnicodeDecodeError as error:
        reason = f"it is not UTF-8 (byte {error.start})"
    except (OSError, ValueError) as error:
        reason = str(error)
    if reason:
        yield finding("KCI728", f"it cannot become a front page: {reason}", path=f"{shown}/{CARD}")


def _header_problem(text: str) -> str:
    header = _HEADER.match(text)
    if header is None:
        return ""
    import yaml

    try:
        data = yaml.safe_load(header[1])
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        return f"its header is no YAML: {(str(error) or type(error).__name__).splitlines()[0][:200]}"
    return "" if data is None or isinstance(data, dict) else "its header is no table of keys and values"
