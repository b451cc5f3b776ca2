"""What a build really read: said by its compilers, uploaded with the variant, kept in the tree's manifest."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

_Path = Annotated[str, Meta(min_length=1, max_length=4096)]
_Digest = Annotated[str, Meta(pattern=r"^[0-9a-f]{64}\Z")]


class RecordedInputs(msgspec.Struct, frozen=True):
    """The inputs of one variant."""

    files: dict[_Path, _Digest]
    """The SHA-256 of each file of the repository, by its path relative to the kernel's directory."""
    toolchain: Annotated[str, Meta(max_length=4096)] = ""
    """The versions of what compiled it; empty where nothing was compiled."""
