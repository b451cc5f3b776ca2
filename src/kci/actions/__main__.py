"""Runs an action, by the name of its module: `python -m kci.actions build`."""

from __future__ import annotations

import importlib
import sys

from kci.actions.common import run_action

if __name__ == "__main__":
    run_action(importlib.import_module(f"kci.actions.{sys.argv[1]}").main)
