"""A Hub in this process: the part of its API that publishing needs, as strict as the real one where
it matters.

Branches, preupload, LFS (batch, upload, verify), commits with a parent, trees, the exchange of
identities for tokens, and faults on demand. What it answers follows huggingface_hub 2.4.0, which
the tests drive against it. Run as a program, `python fake_hub.py FILE REPO...`, it writes its
address to FILE and serves until it is killed.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
import sys
import threading
import urllib.parse
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

TOKEN = "hf_test"
STRANGER = "hf_stranger"
JOB_TOKEN = "hf_jwt_test"
LARGE = (".so", ".pyd", ".dylib", ".dll", ".bin")
"""What the .gitattributes of every repository put into LFS."""


class Fault(Exception):
    """Answer with this instead; without a status, drop the connection."""

    def __init__(
        self, status: int | None, headers: dict[str, str] | None = None, after: bool = False
    ) -> None:
        super().__init__(status)
        self.status, self.headers, self.after = status, headers or {}, after


class Repository:
    """Branches, and commits with the content of every file."""

    def __init__(self) -> None:
        self.objects: dict[str, bytes] = {}
        self.commits: dict[str, dict[str, bytes]] = {}
        self.messages: dict[str, str] = {}
        self.branches: dict[str, str] = {}
        self.proposals: dict[str, str] = {}
        self.ignored: tuple[str, ...] = ()
        lfs = b"*.so filter=lfs diff=lfs merge=lfs -text\n"
        self.write("main", {".gitattributes": lfs}, "initial commit")

    def write(self, branch: str, files: dict[str, bytes], message: str) -> str:
        """A commit with exactly these files."""
        text = repr((sorted(files.items()), self.branches.get(branch), message, len(self.commits)))
        commit = hashlib.sha1(text.encode()).hexdigest()
        self.commits[commit], self.messages[commit] = dict(files), message
        self.branches[branch] = commit
        return commit

    def add(self, branch: str, files: dict[str, bytes], message: str = "by hand") -> str:
        """A commit with these files too; a new branch begins as the main one."""
        there = self.files(branch if branch in self.branches else "main")
        return self.write(branch, there | files, message)

    def propose(self, commit: str) -> str:
        """A pull request with a commit."""
        ref = f"refs/pr/{len(self.proposals) + 1}"
        self.proposals[ref] = commit
        return ref

    def files(self, branch: str) -> dict[str, bytes]:
        """What a branch has."""
        return self.commits[self.branches[branch]]


class FakeHub:
    """The server's state, and what was asked of it."""

    def __init__(self, *repositories: str) -> None:
        self.repositories = {name: Repository() for name in repositories}
        self.log: list[tuple[str, str]] = []
        self.tokens = {TOKEN}
        self.strangers = {STRANGER}
        """Tokens that may propose, and write nothing."""
        self.trusted: dict[str, str] = {}
        """The resource that an identity may have a token for."""
        self.trusts: Callable[[str, str], bool] = lambda identity, resource: (
            self.trusted.get(identity) == resource
        )
        """Whether an identity may have a token for a resource."""
        self.hooks: list[Callable[[str, str], None]] = []
        """Called with the method and path of each request; raises Fault to spoil it."""
        self.page_errors: list[str] = []
        """What is wrong with every front page."""
        self.lock = threading.RLock()
        self.url = ""

    def __getitem__(self, name: str) -> Repository:
        return self.repositories[name]

    def asked(self, pattern: str) -> list[str]:
        """The requests, as `METHOD path`, that match."""
        asked = [f"{method} {path}" for method, path in self.log]
        return [request for request in asked if re.search(pattern, request)]

    def once(self, pattern: str, action: Callable[[], None]) -> None:
        """Do something at the first request that matches."""
        fired = threading.Event()

        def hook(method: str, path: str) -> None:
            if not fired.is_set() and re.search(pattern, f"{method} {path}"):
                fired.set()
                action()

        self.hooks.append(hook)

    def fail(
        self,
        pattern: str,
        status: int | None,
        *,
        after: bool = False,
        times: int = 1,
        **headers: str,
    ) -> None:
        """Spoil the next requests that match; `after` does what was asked first."""
        left = [times]
        named = {name.replace("_", "-"): value for name, value in headers.items()}

        def hook(method: str, path: str) -> None:
            if left[0] and re.search(pattern, f"{method} {path}"):
                left[0] -= 1
                raise Fault(status, named, after)

        self.hooks.append(hook)


@contextmanager
def serving(hub: FakeHub) -> Iterator[FakeHub]:
    """Serve a hub on a free port of this machine."""
    handler = type("Handler", (_Handler,), {"hub": hub})
    server = _Server(("127.0.0.1", 0), handler)
    hub.url = f"http://127.0.0.1:{server.server_address[1]}"
    often = {"poll_interval": 0.01}
    threading.Thread(target=server.serve_forever, kwargs=often, daemon=True).start()
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that was killed is no news."""
        if not isinstance(sys.exc_info()[1], ConnectionError):
            super().handle_error(request, client_address)


class _Handler(BaseHTTPRequestHandler):
    hub: FakeHub
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    """Headers and body are two writes: the second would wait for the client's ACK."""

    def log_message(self, *_: Any) -> None:
        pass

    def _serve(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        parsed = urllib.parse.urlsplit(self.path)
        path = parsed.path
        with self.hub.lock:
            self.hub.log.append((self.command, path))
        try:
            later: Fault | None = None
            for hook in list(self.hub.hooks):
                try:
                    hook(self.command, path)
                except Fault as fault:
                    if not fault.after:
                        raise
                    later = fault
            with self.hub.lock:
                status, answer = self._route(path, dict(urllib.parse.parse_qsl(parsed.query)), body)
            if later is not None:
                raise later
            self._answer(status, answer)
        except Fault as fault:
            if fault.status is None:
                self.close_connection = True
                self.connection.close()
            else:
                self._answer(fault.status, {"error": f"fault {fault.status}"}, fault.headers)

    do_GET = do_POST = do_PUT = do_HEAD = _serve

    def _answer(self, status: int, answer: Any, headers: dict[str, str] | None = None) -> None:
        extra = dict(headers or {})
        if isinstance(answer, dict) and "_headers" in answer:
            extra, data = answer["_headers"], answer["_data"]
        else:
            data = json.dumps(answer).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        for name, value in extra.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)

    def _allowed(self, others: Collection[str] = ()) -> bool:
        token = self.headers.get("Authorization", "").removeprefix("Bearer ")
        return token in {*self.hub.tokens, *others}

    def _route(self, path: str, query: dict[str, str], body: bytes) -> tuple[int, Any]:
        hub = self.hub
        if path == "/oauth/token":
            return self._exchange(json.loads(body))
        if path == "/identity":
            asked = (query.get("api-version"), self.headers.get("Authorization"))
            if asked != ("2.0", "Bearer request-token"):
                return 400, {"error": "not what GitHub takes"}
            return 200, {"value": f"identity for {query['audience']}"}
        if path == "/api/validate-yaml":
            errors = [{"message": message} for message in hub.page_errors]
            return (400 if errors else 200), {"errors": errors, "warnings": []}
        if path == "/api/repos/create":
            return self._create(json.loads(body))
        if match := re.fullmatch(r"/lfs/([^/]+/[^/]+)/([0-9a-f]{64})", path):
            return self._lfs_put(hub[match[1]], match[2], body)
        if match := re.fullmatch(r"/kernels/([^/]+/[^/]+)\.git/info/lfs/objects/batch", path):
            return self._lfs_batch(match[1], json.loads(body))
        if match := re.fullmatch(r"/kernels/([^/]+/[^/]+)/resolve/([^/]+)/(.+)", path):
            return self._resolve(match[1], *map(urllib.parse.unquote, match.groups()[1:]))
        parts = r"/api/kernels/([^/]+/[^/]+)(?:/([a-z-]+)(?:/([^/]+)(?:/(.+))?)?)?"
        match = re.fullmatch(parts, path)
        if match is None:
            return 404, {"error": f"no route {path}"}
        if match[1] not in hub.repositories:
            return 404, {"_headers": {"X-Error-Code": "RepoNotFound"}, "_data": b"{}"}
        repository, what = hub[match[1]], match[2]
        revision = urllib.parse.unquote(match[3] or "main")
        commit = repository.branches.get(revision, revision)
        if what == "refs":

            def listed(named: dict[str, str], start: str = "") -> list[dict[str, str]]:
                names = {name.removeprefix("refs/"): name for name in named}
                return [
                    {"name": short, "ref": start + name, "targetCommit": named[name]}
                    for short, name in names.items()
                ]

            branches = listed(dict(sorted(repository.branches.items())), "refs/heads/")
            kinds = {"branches": branches, "tags": [], "converts": []}
            if query.get("include_prs"):
                kinds["pullRequests"] = listed(repository.proposals)
            return 200, kinds
        if what == "tree":
            return self._tree(repository, commit, match[4] or "", query)
        if what in (None, "revision"):
            siblings = [{"rfilename": name} for name in repository.commits.get(commit, {})]
            return 200, {
                "id": match[1], "_id": "1", "sha": commit, "siblings": siblings, "private": False,
                "trustedKernelPublisher": True, "downloads": 0, "likes": 0, "tags": [],
            }  # fmt: skip
        proposed = query.get("create_pr") == "1"
        if not self._allowed(hub.strangers if what in ("branch", "preupload", "commit") else ()):
            return 401, {"error": "Invalid credentials in Authorization header"}
        if not proposed and not self._allowed():
            return 403, {"error": "Forbidden: you may not write here"}
        if what == "branch":
            if revision in repository.branches:
                return 409, {"error": "exists"}
            repository.branches[revision] = repository.branches["main"]
            return 200, {}
        if what == "preupload":
            modes = [self._mode(repository, file) for file in json.loads(body)["files"]]
            return 200, {"files": modes}
        if what == "commit":
            return self._commit(match[1], repository, revision, body, proposed=proposed)
        return 404, {"error": f"no route {path}"}

    def _exchange(self, asked: dict[str, str]) -> tuple[int, Any]:
        if not self.hub.trusts(asked["subject_token"], asked["resource"]):
            return 400, {"error": "invalid_grant"}
        self.hub.tokens.add(JOB_TOKEN)
        return 200, {"access_token": JOB_TOKEN, "token_type": "bearer", "expires_in": 3600}

    def _create(self, asked: dict[str, Any]) -> tuple[int, Any]:
        if not self._allowed():
            return 401, {"error": "Invalid credentials in Authorization header"}
        name = f"{asked['organization']}/{asked['name']}"
        if name in self.hub.repositories:
            return 409, {"error": "exists", "url": f"{self.hub.url}/kernels/{name}"}
        assert asked["type"] == "kernel"
        self.hub.repositories[name] = Repository()
        return 200, {"url": f"{self.hub.url}/kernels/{name}", "name": name}

    def _mode(self, repository: Repository, file: dict[str, Any]) -> dict[str, Any]:
        large = file["path"].endswith(LARGE) and file["size"] > 0
        ignored = file["path"].endswith(repository.ignored)
        mode = "lfs" if large else "regular"
        return {"path": file["path"], "uploadMode": mode, "shouldIgnore": ignored}

    def _lfs_batch(self, name: str, asked: dict[str, Any]) -> tuple[int, Any]:
        if not self._allowed(self.hub.strangers):
            return 401, {"error": "Invalid credentials in Authorization header"}
        objects = []
        for item in asked["objects"]:
            entry: dict[str, Any] = {"oid": item["oid"], "size": item["size"]}
            if item["oid"] not in self.hub[name].objects:
                entry["actions"] = {"upload": {"href": f"{self.hub.url}/lfs/{name}/{item['oid']}"}}
            objects.append(entry)
        return 200, {"transfer": "basic", "objects": objects}

    def _lfs_put(self, repository: Repository, oid: str, body: bytes) -> tuple[int, Any]:
        if hashlib.sha256(body).hexdigest() != oid:
            return 400, {"error": "wrong content"}
        repository.objects[oid] = body
        return 200, {}

    def _tree(
        self, repository: Repository, commit: str, below: str, query: dict[str, str]
    ) -> tuple[int, Any]:
        if commit not in repository.commits:
            return 404, {"_headers": {"X-Error-Code": "RevisionNotFound"}, "_data": b"{}"}
        start = f"{below}/" if below else ""
        files = repository.commits[commit]
        inside = {path: data for path, data in files.items() if path.startswith(start)}
        if below and not inside:
            return 404, {"_headers": {"X-Error-Code": "EntryNotFound"}, "_data": b"{}"}
        entries: list[dict[str, Any]] = []
        folders, deep = set(), query.get("recursive", "").lower() == "true"
        for path, data in sorted(inside.items()):
            parts = path.removeprefix(start).split("/")
            folders |= {"/".join(parts[:depth]) for depth in range(1, len(parts))}
            if len(parts) > 1 and not deep:
                continue
            oid = hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()
            entry = {"type": "file", "path": path, "size": len(data), "oid": oid}
            if path.endswith(LARGE) and data:
                sha = hashlib.sha256(data).hexdigest()
                lfs = {"oid": sha, "size": len(data), "pointerSize": 134}
                entry |= {"oid": hashlib.sha1(sha.encode()).hexdigest(), "lfs": lfs}
            entries.append(entry)
        entries += [
            {"type": "directory", "path": start + folder, "oid": "0" * 40, "size": 0}
            for folder in sorted(folders)
            if deep or "/" not in folder
        ]
        return 200, entries

    def _commit(
        self, name: str, repository: Repository, branch: str, body: bytes, *, proposed: bool
    ) -> tuple[int, Any]:
        lines = [json.loads(line) for line in body.splitlines()]
        header = lines[0]["value"]
        if branch not in repository.branches:
            return 404, {"_headers": {"X-Error-Code": "RevisionNotFound"}, "_data": b"{}"}
        if header.get("parentCommit", repository.branches[branch]) != repository.branches[branch]:
            return 412, {"error": "A commit has happened since. Please refresh and try again."}
        files = dict(repository.files(branch))
        for line in lines[1:]:
            value = line["value"]
            if line["key"] == "file":
                files[value["path"]] = base64.b64decode(value["content"])
            elif line["key"] == "lfsFile":
                if value["oid"] not in repository.objects:
                    return 400, {"error": f"LFS object {value['oid']} was not uploaded"}
                files[value["path"]] = repository.objects[value["oid"]]
            elif line["key"] == "deletedFile":
                if value["path"] not in files:
                    return 400, {"error": f"{value['path']} does not exist"}
                del files[value["path"]]
        before = repository.branches[branch]
        commit = repository.write(branch, files, header["summary"])
        place = f"{self.hub.url}/kernels/{name}"
        answer = {"commitUrl": f"{place}/commit/{commit}", "commitOid": commit}
        if proposed:
            repository.branches[branch] = before
            number = repository.propose(commit).rpartition("/")[2]
            answer["pullRequestUrl"] = f"{place}/discussions/{number}"
        return 200, answer

    def _resolve(self, name: str, revision: str, path: str) -> tuple[int, Any]:
        repository = self.hub[name]
        commit = repository.branches.get(revision, revision)
        data = repository.commits.get(commit, {}).get(path)
        if data is None:
            return 404, {"_headers": {"X-Error-Code": "EntryNotFound"}, "_data": b""}
        etag = f'"{hashlib.sha256(data).hexdigest()}"'
        headers = {"ETag": etag, "X-Repo-Commit": commit, "X-Linked-Size": str(len(data))}
        return 200, {"_headers": headers, "_data": data}


def main(address: Path, names: list[str]) -> None:
    """Serve until killed; every repository's branches are written to `<address>.json` after each
    commit.
    """
    hub = FakeHub(*names)
    with serving(hub):
        address.write_text(hub.url)
        threading.Event().wait()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
