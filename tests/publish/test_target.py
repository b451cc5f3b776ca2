"""What publishing needs of a repository: branches and commits, as a shelf has them too."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from pathlib import Path

from kci.publish.branch_plan import LocalFile, read_release
from kci.publish.hub import HubFile
from kci.publish.hub_branch import HubKernel
from kci.publish.publish import Publisher, PublishState
from publish.test_publish import make_tree


class Shelf(HubKernel):
    """A repository in memory."""

    def __init__(self) -> None:
        self.commits: dict[str, dict[str, bytes]] = {"0": {}}
        self.branches = {"main": "0"}

    def heads(self) -> dict[str, str]:
        return self.branches

    def files(self, commit: str) -> dict[str, HubFile]:
        content = self.commits[commit]
        return {path: HubFile(path, len(data), hashlib.sha256(data).hexdigest()) for path, data in content.items()}

    def read(self, commit: str, path: str) -> bytes:
        return self.commits[commit][path]

    def proposals(self) -> dict[str, str]:
        return {}

    def create_branch(self, branch: str) -> None:
        self.branches.setdefault(branch, self.branches["main"])

    def check_page(self, text: str) -> None:
        assert text

    def commit(
        self,
        branch: str,
        parent: str,
        add: Mapping[str, LocalFile],
        delete: Iterable[str],
        message: str,
        *,
        propose: bool,
    ) -> str:
        assert message
        assert (self.branches[branch], propose) == (parent, False)
        kept = {path: data for path, data in self.commits[parent].items() if path not in set(delete)}
        commit = str(len(self.commits))
        self.commits[commit] = kept | {path: file.content() for path, file in add.items()}
        self.branches[branch] = commit
        return commit


def test_a_tree_goes_to_a_target_that_is_not_the_hub(tmp_path: Path) -> None:
    release = read_release(make_tree(tmp_path), None, lambda _finding: None)
    shelf = Shelf()
    first = Publisher(shelf, "a shelf").publish(release, "v1")
    assert first.builds.state is PublishState.PUBLISHED
    assert {path.split("/")[1] for path in shelf.files(shelf.branches["v1"]) if path.startswith("build/torch-")} == {
        "torch-cpu",
        "torch-cuda",
    }
    assert Publisher(shelf, "a shelf").publish(release, "v1").builds.state is PublishState.UNCHANGED
