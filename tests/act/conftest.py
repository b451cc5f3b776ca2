from __future__ import annotations

from pathlib import Path

import pytest

from act.harness import copy_actions, installed
from act.test_workflow import Runner


@pytest.fixture(scope="session")
def runner(tmp_path_factory: pytest.TempPathFactory, shared_by_workers: Path) -> Runner:
    """Jobs find kci installed."""
    checkout = copy_actions(tmp_path_factory.mktemp("checkout"))
    return Runner(checkout, installed(shared_by_workers))
