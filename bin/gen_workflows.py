"""Writes the reusable workflow that short files call, from the templates; a newer pin of an action
in it is kept.
"""

from __future__ import annotations

from pathlib import Path

from kci.workflows.render import REUSABLE_FILES, render_reusable
from kci.workflows.rendered_files import choose_pins, read_committed, write_files

ROOT = Path(__file__).resolve().parent.parent

if __name__ == "__main__":
    write_files(ROOT, render_reusable(choose_pins(read_committed(ROOT, REUSABLE_FILES))))
