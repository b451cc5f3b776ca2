"""Stand-in for the part of GitHub's API that is about pull requests, their comments, runs and artifacts.

It refuses what the job that asks has no permission for, as the workflow file that KCI_ACT_WORKFLOW names says.
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
    (r"GET actions/runs(/\d+(/artifacts)?)?", "actions", "read"),
    (r"GET compare/[0-9a-f]{40}\.\.\.[0-9a-f]{40}", "contents", "read"),
    (r"GET actions/artifacts/\d+/zip", "actions", "read"),
    (r"POST actions/workflows/[a-z.-]+/dispatches", "actions", "write"),
    (r"POST actions/runs/\d+/rerun-failed-jobs", "actions", "write"),
    (r"GET pulls(/\d+)?", "pull-requests", "read"),
    (r"PUT pulls/\d+/merge", "contents", "write"),
    (r"GET issues/\d+/comments", "pull-requests", "read"),
    (r"(POST issues/\d+/comments|(PATCH|DELETE) issues/comments/\d+)", "pull-requests", "write"),
    (r"POST issues/comments/\d+/reactions", "pull-requests", "write"),
    (r"GET collaborators/[A-Za-z0-9-]+/permission", "metadata", "read"),
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
    state: dict[str, Any], method: str, path: str, query: dict[str, str], sent: dict[str, Any], may: dict[str, str]
) -> Any:
    """What GitHub would say; None for what is not there. Refused where the permissions do not do."""
    name, wanted = next(rest for pattern, *rest in NEEDED if re.fullmatch(pattern, f"{method} {path}"))
    if may.get(name) not in (wanted, "write"):
        raise Refused(f"gh: Resource not accessible by integration (HTTP 403): {method} {path}")
    if path.startswith("compare/"):
        return {"status": state["compared"], "commits": []}
    numbers = [int(word) for word in re.findall(r"\d+", path)]
    comments = state.setdefault("comments", [])
    match method, re.sub(r"\d+", "N", path):
        case "GET", "actions/runs/N":
            return next((run for run in state["runs"] if run["id"] == numbers[0]), None)
        case "GET", "actions/runs":
            found = [run for run in state["runs"] if run["head_sha"] == query["head_sha"]]
            return {"workflow_runs": [run for run in found if run["event"] == query["event"]]}
        case "GET", "actions/runs/N/artifacts":
            return {"artifacts": paged(artifacts(state, numbers[0]), query)}
        case "GET", "actions/artifacts/N/zip":
            return packed(Path(state["places"][str(numbers[0])]))
        case "GET", "pulls":
            owner, _, branch = query["head"].partition(":")
            heads = [(pull, pull["head"]) for pull in state["pulls"] if pull["state"] == query["state"]]
            return [
                pull
                for pull, head in heads
                if (head["repo"]["owner"]["login"], head.get("ref", "topic")) == (owner, branch)
            ]
        case "GET", "pulls/N":
            return next((pull for pull in state["pulls"] if pull["number"] == numbers[0]), None)
        case "PUT", "pulls/N/merge":
            pull = next(item for item in state["pulls"] if item["number"] == numbers[0])
            if sent["merge_method"] not in state.get("merges", ("merge",)):
                raise Refused("gh: Merge commits are not allowed on this repository. (HTTP 405)")
            if sent["sha"] != pull["head"]["sha"]:
                raise Refused("gh: Head branch was modified. Review and try the merge again. (HTTP 409)")
            if why := state.get("unmergeable"):
                raise Refused(f"gh: {why} (HTTP 405)")
            pull |= {"state": "closed", "merged_at": "2026-11-23T08:01:00Z"}
            return {"merged": True, "sha": "c" * 40}
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
        case "POST", "issues/comments/N/reactions":
            state.setdefault("reactions", []).append([numbers[0], sent["content"]])
            return {}
        case "POST", _ if path.endswith("/dispatches"):
            state.setdefault("dispatched", []).append([path.split("/")[2], sent])
            return {"workflow_run_id": 77, "html_url": "https://github.com/example/kernels/actions/runs/77"}
        case "POST", "actions/runs/N/rerun-failed-jobs":
            state.setdefault("again", []).append(numbers[0])
            return {}
        case "GET", _ if path.startswith("collaborators/"):
            level = state.get("permissions", {}).get(path.split("/")[1])
            return None if level is None else {"permission": level}
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
