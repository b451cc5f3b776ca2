"""The license of a project that is taken over: what it says itself, and never one that nobody chose."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Mapping
from pathlib import Path

from packaging.licenses import InvalidLicenseExpression, canonicalize_license_expression

_TEXTS = re.compile(r"(?i)(?:licen[cs]e|copying)(?:[-.](?:txt|md|rst|mit|apache|bsd))?")
_CLASSIFIERS = {
    "MIT License": "MIT", "Apache Software License": "Apache-2.0", "ISC License (ISCL)": "ISC",
    "The Unlicense (Unlicense)": "Unlicense",
    "Mozilla Public License 2.0 (MPL 2.0)": "MPL-2.0", "GNU General Public License v3 (GPLv3)": "GPL-3.0-only",
    "GNU General Public License v2 (GPLv2)": "GPL-2.0-only", "Boost Software License 1.0 (BSL-1.0)": "BSL-1.0",
    "GNU Affero General Public License v3": "AGPL-3.0-only",
}  # fmt: skip
"""Classifiers of the Python package index that mean one license; `BSD License` means several."""


def license_of(said: str, classifiers: tuple[str, ...], files: Mapping[str, bytes]) -> tuple[str, str]:
    """The SPDX expression of a project, and where it stands; two empty texts if nothing says.

    Args:
        said: what setup.py or pyproject.toml calls the license.
        classifiers: those of the package.
        files: the project's files; LICENSE and COPYING at the top are read.
    """
    texts = [(name, known) for name in sorted(files) if _TEXTS.fullmatch(name) and (known := _recognized(files[name]))]
    if len(said) < 200 and "\n" not in said and (known := _expression(said)):
        return known, "`license`"
    if texts:
        return texts[0][1], texts[0][0]
    named = {_CLASSIFIERS[last] for item in classifiers if (last := item.rpartition(" :: ")[2]) in _CLASSIFIERS}
    return (named.pop(), "the classifiers") if len(named) == 1 else ("", "")


def _expression(text: str) -> str:
    text = text.strip().removesuffix(" License").removesuffix(" license")
    try:
        return str(canonicalize_license_expression(text)) if text else ""
    except InvalidLicenseExpression:
        return ""


def _recognized(raw: bytes) -> str:
    """The SPDX identifier of a license's text."""
    from identify import identify

    if len(raw) > 100_000:
        return ""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "LICENSE"
        file.write_text(raw.decode("utf-8", "replace"), encoding="utf-8")
        return _expression(identify.license_id(str(file)) or "")
