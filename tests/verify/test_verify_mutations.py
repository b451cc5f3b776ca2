"""Mutated archives and trees: a finding or an error that names it, never a traceback, a hang or a stray file.

`KCI_MUTATIONS` sets how many archives are tried, and a quarter as many trees.
"""

from __future__ import annotations

import os

ARCHIVES = int(os.environ.get("KCI_MUTATIONS", "400"))
