"""The part of the `gh api` stand-in about pull requests, commits and branches: as much as kci asks, and as strict."""

from __future__ import annotations

import hashlib
import json
import re
from typing import Any

BOT = "github-actions[bot]"


def answered(code: dict[str, Any], method: str, path: str, query: dict[str, str], sent: dict[str, Any]) -> Any:
    """What GitHub would say; None for what it refuses."""
    trees, commits = code.setdefault("trees", {}), code.setdefault("commits", {})
    refs, pulls = code.setdefault("refs", {}), code.setdefault("pulls", [])
    match method, path:
        case "POST", "git/trees":
            files = trees.get(sent["base_tree"], {}) | {item["path"]: item["content"] for item in sent["tree"]}
            return _kept(trees, files)
        case "POST", "git/commits":
            return _kept(commits, {**sent, "tree": {"sha": sent["tree"]}})
        case "POST", "git/refs":
            name = sent["ref"].removeprefix("refs/heads/")
            return None if name in refs or sent["sha"] not in commits else _moved(refs, name, sent["sha"])
        case "POST", "pulls":
            return _opened(pulls, refs, sent)
        case "GET", "pulls":
            assert query["state"] == "all"
            head = query["head"].removeprefix("example:")
            return [_shown(pull, refs) for pull in reversed(pulls) if pull["head"]["ref"] == head]
    if method == "GET" and path.startswith("git/matching-refs/heads/"):
        prefix = path.removeprefix("git/matching-refs/heads/")
        found = sorted(name for name in refs if name.startswith(prefix))
        return [{"ref": f"refs/heads/{name}", "object": {"sha": refs[name]}} for name in found]
    if found := re.fullmatch(r"git/refs/heads/(.+)", path):
        if found[1] not in refs or (method == "PATCH" and sent["force"] is not True):
            return None
        if method == "DELETE":
            return {"was": refs.pop(found[1])}
        return _moved(refs, found[1], sent["sha"])
    if method == "GET" and (found := re.fullmatch(r"git/commits/([0-9a-f]{40})", path)):
        known = commits.get(found[1], {"message": "somebody's", "tree": {"sha": "0" * 40}})
        return {**known, "sha": found[1]}
    if found := re.fullmatch(r"pulls/(\d+)", path):
        pull = pulls[int(found[1]) - 1]
        pull.update(sent)
        return _shown(pull, refs)
    return None


def _kept(store: dict[str, Any], value: Any) -> dict[str, str]:
    sha = hashlib.sha1(json.dumps(value, sort_keys=True).encode()).hexdigest()
    store[sha] = value
    return {"sha": sha}


def _moved(refs: dict[str, str], name: str, sha: str) -> dict[str, Any]:
    refs[name] = sha
    return {"ref": f"refs/heads/{name}", "object": {"sha": sha}}


def _opened(pulls: list[dict[str, Any]], refs: dict[str, str], sent: dict[str, Any]) -> Any:
    """Refused if the branch is missing or has an open one already, as GitHub does."""
    if sent["head"] not in refs or any(p["state"] == "open" and p["head"]["ref"] == sent["head"] for p in pulls):
        return None
    pull = {
        "number": len(pulls) + 1,
        "state": "open",
        "user": {"login": BOT},
        "merged_at": None,
        **sent,
        "head": {"ref": sent["head"], "sha": refs[sent["head"]]},
    }
    pulls.append(pull)
    return pull


def _shown(pull: dict[str, Any], refs: dict[str, str]) -> dict[str, Any]:
    head = pull["head"]
    return {**pull, "head": {**head, "sha": refs.get(head["ref"], head["sha"])}}
