"""Why `kci update` edits the text itself: tomlkit, which kci uses for the files it creates, moves what a person wrote.

Each case is one byte or comment that need not change, and does with tomlkit. When a release of tomlkit keeps them all,
this test fails, and kci's own editing can go.
"""

from __future__ import annotations

import pytest
import tomlkit

from kci.config.update import plan_update

REST = '\nversion = 1\nlicense = "MIT"\nbackends = ["cuda"]'
KERNEL = '[kernel.norm]\nbackend = "cuda"\ndepends = ["torch"]\nsrc = []\n'

CASES = {
    "a comment above the next table": f'[general]\nname = "some-kernel"{REST}\n\n# The fast one.\n[torch]\n{KERNEL}',
    "line ends": f'[general]\nname = "some-kernel"{REST}\n\n[torch]\n{KERNEL}'.replace("\n", "\r\n"),
}


def with_tomlkit(text: str) -> str:
    """The smallest edit that tomlkit offers: one key in one table."""
    document = tomlkit.parse(text)
    document["general"]["edition"] = 5  # type: ignore[index]
    return tomlkit.dumps(document)


def without_new_line(text: str) -> str:
    """The text without the line that sets the edition, and its line end."""
    return "".join(line for line in text.splitlines(keepends=True) if not line.startswith("edition"))


@pytest.mark.parametrize("name", CASES)
def test_update_keeps_what_tomlkit_would_move(name: str) -> None:
    text = CASES[name]
    updated = plan_update(text.encode()).after.decode()
    assert without_new_line(updated) == text
    assert updated.count("\r\n") in (0, updated.count("\n")), "the new line ends like the others"
    other = with_tomlkit(text)
    moved = other.index("# The fast one.") < other.index("edition") if "fast" in text else "5\n" in other
    assert moved, "tomlkit keeps this now"
    if "fast" in text:
        assert updated.index("edition") < updated.index("# The fast one.")
