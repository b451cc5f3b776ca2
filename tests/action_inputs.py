"""The inputs of an action, as its file hands them to kci."""

from __future__ import annotations

import json

from kci.actions.common import INPUTS


def inputs_of(**given: object) -> dict[str, str]:
    """The variable that has them: an input is a word, with `_` in place of `-`."""
    return {INPUTS: json.dumps({name.replace("_", "-"): str(value) for name, value in given.items()})}
