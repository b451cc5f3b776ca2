"""A history in a dataset on the Hub.

Its files are named after what they hold, so whoever records at the same time adds files of other names, and the Hub
takes one commit after the other.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from kci.hub.hub_listing import ask_hub, hub_client
from kci.watch.history import RecordedRun, run_file
from kci.watch.history_branch import FOLDER


class HistoryDataset:
    """A dataset that has a history, or will have one; `huggingface_hub` talks to it."""

    def __init__(self, repo_id: str, client: Any = None) -> None:
        """Name it.

        Args:
            repo_id: `owner/name`; the dataset exists.
            client: an `HfApi`; by default one that takes its token from the environment.
        """
        self.repo_id = repo_id
        self._client = client or hub_client()

    def record(self, runs: Sequence[RecordedRun]) -> int:
        """Append runs, in one commit.

        Returns:
            the number of new files.

        Raises:
            FindingsError: the dataset cannot be read or written.
        """
        there = set(self._ask(lambda: self._client.list_repo_files(self.repo_id, repo_type="dataset")))
        files = {f"{FOLDER}/{name}": raw for name, raw in map(run_file, runs)}
        new = {path: raw for path, raw in sorted(files.items()) if path not in there}
        if new:
            message = f"Results of run {', '.join(sorted({str(run.run) for run in runs}))}"
            self._ask(
                lambda: self._client.create_commit(
                    self.repo_id, operations=_additions(new), commit_message=message, repo_type="dataset"
                )
            )
        return len(new)

    def _ask(self, question: Callable[[], Any]) -> Any:
        hint = "does the dataset exist, and does HF_TOKEN allow to write to it?"
        return ask_hub(question, f"the dataset {self.repo_id} takes no commit", hint)


def _additions(files: dict[str, bytes]) -> list[Any]:
    from huggingface_hub import CommitOperationAdd

    return [CommitOperationAdd(path_in_repo=path, path_or_fileobj=raw) for path, raw in files.items()]
