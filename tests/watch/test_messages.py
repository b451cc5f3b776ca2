"""The words of tools: which are outages, and what is the cause of the others, held against what
public threads show.
"""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import pytest

from kci.watch.causes import cause_of, outage_class

TEXT = Path(__file__).with_name("messages.toml").read_text(encoding="utf-8")
TABLE: dict[str, Any] = tomllib.loads(TEXT)
VARIANT = "torch215-cxx11-cpu-x86_64-linux"
PARTS = ("fitted", "held-out", "held-out-again", "held-out-third")
MESSAGES = [message for part in PARTS for message in TABLE.get(part, [])]
OUTAGES = [message for message in MESSAGES if "outage" in message]
FAILURES = [message for message in MESSAGES if "cause" in message]


@pytest.mark.parametrize("message", OUTAGES, ids=lambda message: message["seen"])
def test_an_outage_is_told_by_what_it_says(message: dict[str, str]) -> None:
    assert outage_class(message["text"]) == message["outage"]


@pytest.mark.parametrize("message", FAILURES, ids=lambda message: message["seen"])
def test_a_failure_is_no_outage_and_has_its_cause(message: dict[str, str]) -> None:
    assert outage_class(message["text"]) == ""
    assert cause_of(message["text"], "relu", VARIANT) == message["cause"]


def test_a_loader_for_which_a_machine_has_no_memory_is_an_outage() -> None:
    said = "ImportError: _relu.abi3.so: cannot map zero-fill pages: Cannot allocate memory"
    assert outage_class(said) == "memory"


@pytest.mark.parametrize(
    "symbol", ["SSL_connect", "_ZN4acme21ServerDisconnectedExcE", "gnutls_handshake", "nvml: x"]
)
def test_a_symbol_that_a_loader_lacks_is_no_outage_whatever_its_name(symbol: str) -> None:
    assert outage_class(f"ImportError: /opt/b/relu/_relu.abi3.so: undefined symbol: {symbol}") == ""
