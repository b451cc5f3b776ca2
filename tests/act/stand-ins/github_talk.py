"""Stand-in for the part of GitHub's API that is about pull requests, their comments, runs and
artifacts.

It refuses what the job that asks has no permission for, as the workflow file that KCI_ACT_WORKFLOW
names says.
"""

from __future__ import annotations

import io
import os
import re
import zipfile
from pathlib import Path
from typing import Any

BOT = "github-actions[bot]"
NEEDED = (
    (r"GET actions/runs/\d+(/artifacts)?", "actions", "read"),
    (r"GET actions/artifacts/\d+/zip", "actions", "read"),
    (r"GET pulls", "pull-requests", "read"),
    (r"GET issues/\d+/comments", "pull-requests", "read"),
    (r"(POST issues/\d+/comments|(PATCH|DELETE) issues/comments/\d+)", "pull-requests", "write"),
)
"""What is known here, and the permission that GitHub asks of a token for it."""


class Refused(Exception):
    """GitHub's answer to a token that may not."""


def of_job() -> dict[str, str]:
    """The permissions of the job that asks."""
    import yaml

    workflow = yaml.safe_load(Path(os.environ["KCI_ACT_WORKFLOW"]).read_text())
    return {"metadata": "read", **workflow["jobs"][os.environ["GITHUB_JOB"]]["permissions"]}


def knows(method: str, path: str) -> bool:
    return any(re.fullmatch(pattern, f"{method} {path}") for pattern, *_ in NEEDED)


def answered(
    state: dict[str, Any],
    method: str,
    path: str,
    query: dict[str, str],
    sent: dict[str, Any],
    may: dict[str, str],
) -> Any:
    """What GitHub would say; None for what is not there.

    Refused where the permissions do not do.
    """
    name, wanted = next(
        rest for pattern, *rest in NEEDED if re.fullmatch(pattern, f"{method} {path}")
    )
    if may.get(name) not in (wanted, "write"):
        raise Refused(f"gh: Resource not accessible by integration (HTTP 403): {method} {path}")
    numbers = [int(word) for word in re.findall(r"\d+", path)]
    comments = state.setdefault("comments", [])
    match method, re.sub(r"\d+", "N", path):
        case "GET", "actions/runs/N":
            return next((run for run in state["runs"] if run["id"] == numbers[0]), None)
        case "GET", "actions/runs/N/artifacts":
            return {"artifacts": paged(artifacts(state, numbers[0]), query)}
        case "GET", "actions/artifacts/N/zip":
            return packed(Path(state["places"][str(numbers[0])]))
        case "GET", "pulls":
            owner, _, branch = query["head"].partition(":")
            heads = [
                (pull, pull["head"]) for pull in state["pulls"] if pull["state"] == query["state"]
            ]
            return [
                pull
                for pull, head in heads
                if (head["repo"]["owner"]["login"], head.get("ref", "topic")) == (owner, branch)
            ]
        case "GET", "issues/N/comments":
            return paged([item for item in comments if item["issue"] == numbers[0]], query)
        case "POST", "issues/N/comments":
            made = {"id": 1000 + len(comments), "issue": numbers[0], "user": {"login": BOT}, **sent}
            comments.append(made)
            return made
        case "PATCH", "issues/comments/N":
            found = next(item for item in comments if item["id"] == numbers[0])
            found.update(sent)
            return found
        case "DELETE", "issues/comments/N":
            state["comments"] = [item for item in comments if item["id"] != numbers[0]]
            return {}
    return None


def paged(items: list[Any], query: dict[str, str]) -> list[Any]:
    size, page = int(query["per_page"]), int(query["page"])
    return items[size * (page - 1) : size * page]


def artifacts(state: dict[str, Any], run: int) -> list[dict[str, Any]]:
    """The artifacts that a run has in the folder of the upload stand-in."""
    places = state.setdefault("places", {})
    found = []
    folder = Path(state["artifacts"][str(run)])
    for number, place in enumerate(sorted(folder.iterdir()), start=run * 1000):
        places[str(number)] = str(place)
        found.append({"id": number, "name": place.name, "size_in_bytes": len(packed(place))})
    return found


def packed(place: Path) -> bytes:
    """An artifact as GitHub sends it; a file in place of a folder is sent as it is."""
    if place.is_file():
        return place.read_bytes()
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as archive:
        for file in sorted(place.rglob("*")):
            if file.is_file():
                archive.write(file, file.relative_to(place).as_posix())
    return stream.getvalue()
