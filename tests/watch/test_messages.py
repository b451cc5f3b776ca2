"""The words of tools: which are outages, and what is the cause of the others, held against what public threads show."""

from __future__ import annotations

import tomllib
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from kci.watch.causes import cause_of, outage_of

TABLE: dict[str, Any] = tomllib.loads((Path(__file__).parent / "messages.toml").read_text(encoding="utf-8"))
PARTS = ("fitted", "held-out")
MESSAGES = [message for part in PARTS for message in TABLE.get(part, [])]
OUTAGES = [message for message in MESSAGES if "outage" in message]
FAILURES = [message for message in MESSAGES if "cause" in message]


def figures(messages: list[dict[str, str]]) -> tuple[float, float, int]:
    """Precision and recall of outages, and how many were given their right class."""
    taken = [message for message in messages if outage_of(message["text"])]
    right = [message for message in taken if "outage" in message]
    there = [message for message in messages if "outage" in message]
    classes = sum(outage_of(message["text"]) == message["outage"] for message in right)
    return len(right) / len(taken), len(right) / len(there), classes


@pytest.mark.parametrize("message", OUTAGES, ids=lambda message: message["seen"])
def test_an_outage_is_told_by_what_it_says(message: dict[str, str]) -> None:
    assert outage_of(message["text"]) == message["outage"]


@pytest.mark.parametrize("message", FAILURES, ids=lambda message: message["seen"])
def test_a_failure_is_no_outage_and_has_its_cause(message: dict[str, str]) -> None:
    assert outage_of(message["text"]) == ""
    assert cause_of(message["text"], "relu", "v") == message["cause"]
