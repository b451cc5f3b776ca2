"""Making the output appear whole or not at all."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from kci.errors import UnsafeError


@contextmanager
def publish(output: Path) -> Iterator[Path]:
    """Give a directory to fill, and put it in place of `output` when it is full.

    If anything goes wrong while it is being filled, what was at `output` stays as it was and nothing is left behind.

    Args:
        output: the variant directory. An older variant there is replaced.

    Raises:
        UnsafeError: something that is not a variant directory is at `output`.
    """
    check_replaceable(output)
    parent = output.absolute().parent
    parent.mkdir(parents=True, exist_ok=True)
    # Beside the output, because a rename works only within one file system.
    room = Path(tempfile.mkdtemp(prefix=f".{output.name}.", suffix=".kci", dir=parent))
    try:
        staging = room / "new"
        staging.mkdir()
        yield staging
        for directory, _, _ in os.walk(staging):
            Path(directory).chmod(0o755)
        if output.exists():
            output.rename(room / "old")
        staging.rename(output)
    finally:
        shutil.rmtree(room, ignore_errors=True)


def check_replaceable(output: Path) -> None:
    """Refuse to replace anything but an empty directory or a variant directory.

    Raises:
        UnsafeError: something else is there.
    """
    if output.is_symlink() or (output.exists() and not output.is_dir()):
        raise UnsafeError(f"{output} is in the way: it is not a directory", hint="name another --output")
    if output.is_dir() and any(output.iterdir()) and not (output / "__init__.py").is_file():
        hint = "name another --output, or remove the directory"
        raise UnsafeError(f"{output} is in the way: it has files and is not a variant directory", hint=hint)
