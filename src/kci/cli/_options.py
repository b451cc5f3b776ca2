"""What the options say that every command takes."""

from __future__ import annotations

import os
from typing import NamedTuple


class Options(NamedTuple):
    """What the options that every command takes have set."""

    quiet: bool = False
    verbose: bool = False
    color: str = "auto"
    plain: bool = False


def colored(options: Options) -> bool | None:
    """Whether to color; None for where it is a terminal. See https://no-color.org for the variable."""
    if options.plain or options.color == "never":
        return False
    if options.color == "always":
        return True
    return False if os.environ.get("NO_COLOR") else None
