"""What has to be set on GitHub beside the files."""

from __future__ import annotations

import pytest

from kci.workflows.repository import settings_text
from planning import parse_settings

RUNNERS = '[runners.cuda.x86_64-linux]\nlabels = ["self-hosted"]\n'
FORKS = '[pull-request]\nforks = "dispatch"\n'


@pytest.mark.parametrize(
    ("word", "needed_by"),
    [
        ("status check `kci`", ""),
        ("self-hosted runners that", RUNNERS),
        ("make `kci-own-machines`, with required reviewers", FORKS),
        ("commit status `kci/own-machines`", FORKS),
    ],
)
def test_a_setting_is_named_where_it_is_needed(word: str, needed_by: str) -> None:
    for text in ("", RUNNERS, FORKS):
        said = "\n".join(settings_text(parse_settings(text.encode())))
        assert (word in said) is (needed_by in ("", text)), text
