"""The artifacts of a run on GitHub, and which trees of earlier runs are still among them."""

from __future__ import annotations

from collections.abc import Iterator

from msgspec.structs import replace

from kci.errors import KciError
from kci.run.gate import KEPT_DAYS, TreeIndex
from kci.utils.atomic import Log
from kci.utils.frozen import Frozen
from kci.utils.suggest import first_of
from kci.watch.issue_tracker import GitHubApi, all_pages

_PAGES = 50


class Artifact(Frozen):
    """An artifact of GitHub's API."""

    id: int
    name: str
    size_in_bytes: int
    expired: bool = False


class _Artifacts(Frozen):
    artifacts: list[Artifact]


def run_artifacts(api: GitHubApi, run: int) -> Iterator[Artifact]:
    """The artifacts of a run; FindingsError if GitHub refuses or does not answer."""
    path = f"actions/runs/{run}/artifacts"
    return all_pages(
        lambda page: api.request_as(_Artifacts, "GET", f"{path}?{page}").artifacts, _PAGES
    )


def without_lost(index: TreeIndex, api: GitHubApi, warn: Log) -> TreeIndex:
    """The index without the trees that are no longer in their runs, as far as GitHub says so."""
    names: dict[str, list[str]] = {}
    for run in sorted({place.run for place in index.trees.values()}):
        try:
            names[run] = [
                item.name for item in run_artifacts(api, int(run or 0)) if not item.expired
            ]
        except KciError as error:
            if "HTTP 404" in error.message:  # as of a run that was deleted
                names[run] = []
            else:
                warn(
                    f"it is unknown whether the trees of run {run} are still there: {error.message}"
                )
    there = {
        kernel: place
        for kernel, place in index.trees.items()
        if place.run not in names
        or any(name.startswith(f"tree.{kernel}.") for name in names[place.run])
    }
    if lost := sorted(index.trees.keys() - there.keys()):
        gone = f"deleted, or kept for less than {KEPT_DAYS} days"
        warn(
            f"the tree of {first_of(lost, 3)} is gone: its artifact was {gone}; it is built once "
            "more"
        )
    return replace(index, trees=there)
