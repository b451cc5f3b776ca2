"""kci/build/record: the results of a scheduled run, appended to the history on a branch."""

from __future__ import annotations

from pathlib import Path

from common import history_branch, required_input, run_action, set_output
from kci.cli._output import print_diagnostics
from kci.utils.suggest import count
from kci.watch.history import gather, read_results


def main() -> None:
    """Read what the legs uploaded, say what cannot be read, and record the rest."""
    folder = Path(required_input("results"))
    results, problems = read_results([folder] if folder.is_dir() else [])
    runs, conflicts = gather(results)
    print_diagnostics([*problems, *conflicts])
    new = history_branch().record(runs) if runs else 0
    print(f"{count(len(results), 'result')}, {count(new, 'new file')} in the history")
    set_output("new", str(new))


if __name__ == "__main__":
    run_action(main)
