"""Stand-in for `gh api`: issues of one repository in the JSON file that KCI_ACT_ISSUES names.

It knows what kci asks, refuses the rest as GitHub does, and notes every request.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import sys
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

import github_talk

BOT = "github-actions[bot]"


def main(method: str, address: str, *options: str) -> None:
    """Answer one request."""
    store = Path(os.environ["KCI_ACT_ISSUES"])
    with store.with_suffix(".lock").open("w") as one_at_a_time:  # jobs run side by side
        fcntl.flock(one_at_a_time, fcntl.LOCK_EX)
        answer = asked_once(store, method, address, *options)
    if answer is None:
        sys.exit(f"gh: Not Found (HTTP 404): {method} {address}")
    sys.stdout.buffer.write(answer if isinstance(answer, bytes) else json.dumps(answer).encode())


def asked_once(store: Path, method: str, address: str, *options: str) -> Any:
    """Answer from the state in a file, and keep what has changed."""
    state: dict[str, Any] = (
        json.loads(store.read_text()) if store.exists() else {"issues": [], "requests": []}
    )
    path, _, query = address.partition("?")
    sent = json.loads(sys.stdin.read()) if options == ("--input", "-") else {}
    state["requests"].append(f"{method} {path}")
    asked = {key: value[0] for key, value in parse_qs(query).items()}
    below = path.removeprefix("repos/example/kernels/")
    if "pulls" in state and github_talk.knows(
        method, below
    ):  # the repository of a test that is about talking
        try:
            answer = github_talk.answered(state, method, below, asked, sent, github_talk.of_job())
        except github_talk.Refused as error:
            sys.exit(str(error))
    else:
        answer = answered(state["issues"], method, path, asked, sent)
    store.write_text(json.dumps(state, indent=1))
    return answer


def answered(
    issues: list[dict[str, Any]],
    method: str,
    path: str,
    query: dict[str, str],
    sent: dict[str, str],
) -> Any:
    """What GitHub would say; None for what is not there."""
    match method, path:
        case "PUT", "repos/example/kernels/actions/workflows/kci-compat.yml/enable":
            return {}
        case "GET", "repos/example/kernels/issues":
            found = [
                issue for issue in reversed(issues) if issue["user"]["login"] == query["creator"]
            ]
            size, page = int(query["per_page"]), int(query["page"])
            return found[size * (page - 1) : size * page]
        case "POST", "repos/example/kernels/issues":
            made = {
                "number": len(issues) + 1,
                "state": "open",
                "user": {"login": BOT},
                "pull_request": None,
                **sent,
            }
            issues.append(made)
            return made
    if method == "PATCH" and (number := re.fullmatch(r"repos/example/kernels/issues/(\d+)", path)):
        issue = issues[int(number[1]) - 1]
        issue.update(sent)
        return issue
    return None


if __name__ == "__main__":
    main(*sys.argv[1:])
