"""What has to be set on GitHub beside the files."""

from __future__ import annotations

import pytest

from kci.workflows.repository import settings_text
from planning import parse_settings


@pytest.mark.parametrize(
    ("text", "word", "there"),
    [
        ("", "status check `kci`", True),
        ("", "self-hosted runners that", False),
        (
            '[runners.cuda.x86_64-linux]\nlabels = ["self-hosted"]\n',
            "self-hosted runners that",
            True,
        ),
        ("", "kci-own-machines", False),
        (
            '[pull-request]\nforks = "dispatch"\n',
            "make `kci-own-machines`, with required reviewers",
            True,
        ),
        ('[pull-request]\nforks = "dispatch"\n', "commit status `kci/own-machines`", True),
    ],
)
def test_a_setting_is_named_where_it_is_needed(text: str, word: str, there: bool) -> None:
    assert any(word in line for line in settings_text(parse_settings(text.encode()))) is there
