"""What a compiler says that it read: its dependency file."""

from __future__ import annotations

import os
import re
from pathlib import Path

from kci.errors import BuildFailedError

# A word of a rule of make, in which spaces, `#` and tabs are escaped.
_WORD = re.compile(r"(?:\\[\\ #\t]|\S)+")
_ESCAPED = re.compile(r"\\([ #\t])")


def dependencies(depfile: Path) -> list[str]:
    """What a dependency file names behind its target; it is a rule of make.

    Raises:
        BuildFailedError: it cannot be read.
    """
    try:
        text = os.fsdecode(depfile.read_bytes())
    except OSError as error:
        raise BuildFailedError(f"the compiler did not say what it read: {depfile}: {error.strerror}") from error
    _, _, rule = text.replace("\\\n", " ").replace("\\\r\n", " ").partition(": ")
    rule = rule.partition("\n")[0]
    if "\\" not in rule and "$" not in rule:
        return rule.split()
    words = _WORD.findall(rule)
    return [_ESCAPED.sub(r"\1", word).replace("$$", "$") for word in words]
