"""A server that answers like Hugging Face's, as far as a run on its Jobs asks: commits, jobs, and a bucket's files.

A job really runs: as a process of this machine, or in a container of podman, which sees of this machine what the
request mounts and nothing else. Requests are read through huggingface_hub's own types.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import itertools
import json
import os
import re
import signal
import subprocess
import sys
import threading
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

from huggingface_hub import JobInfo
from huggingface_hub._jobs_api import JobSpec

Mounted = tuple[Path, bool]
"""What is mounted somewhere, and whether it can be read only."""


class HubStandIn:
    """Repositories, a bucket and jobs in a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.jobs: dict[str, dict[str, Any]] = {}
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self.objects: dict[str, bytes] = {}
        self.specs: list[dict[str, Any]] = []
        self.broken = 0
        """How many answers will be errors of the server."""
        self.lost_replies = 0
        """How many jobs will be started without an answer."""
        self._numbers = itertools.count(1)
        stand_in = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            disable_nagle_algorithm = True  # headers and body are two writes: the second would wait for an ACK

            def log_message(self, *_: object) -> None:
                pass

            def _serve(self) -> None:
                length = int(self.headers.get("Content-Length") or 0)
                body = self.rfile.read(length)
                if self.headers.get("Transfer-Encoding") == "chunked":
                    while size := int(self.rfile.readline(), 16):
                        body += self.rfile.read(size)
                        self.rfile.readline()
                code, answer = stand_in.answer(self.command, self.path, body)
                data = answer if isinstance(answer, bytes) else json.dumps(answer).encode()
                self.send_response(code)
                self.send_header("Content-Length", str(len(data)))
                kind = "application/octet-stream" if isinstance(answer, bytes) else "application/json"
                self.send_header("Content-Type", kind)
                self.end_headers()
                self.wfile.write(data)

            do_GET = do_POST = do_PUT = do_HEAD = _serve

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.thread = threading.Thread(target=self.server.serve_forever, args=(0.01,), daemon=True)
        self.thread.start()
        self.url = f"http://127.0.0.1:{self.server.server_port}"

    def close(self) -> None:
        """Stop the server, and what runs."""
        self.server.shutdown()
        self.server.server_close()
        self.thread.join()
        for number in self.processes:
            self._kill(number)

    def answer(self, verb: str, target: str, body: bytes) -> tuple[int, Any]:
        """What a request gets."""
        url = urlsplit(target)
        path, query = url.path, parse_qs(url.query)
        if self.broken:
            self.broken -= 1
            return 503, {"error": "the service is away"}
        if found := re.fullmatch(r"/api/datasets/([^/]+/[^/]+)/preupload/.+", path):
            files = json.loads(body)["files"]
            return 200, {
                "files": [{"path": item["path"], "uploadMode": _mode(item), "shouldIgnore": False} for item in files]
            }
        if path.endswith("/info/lfs/objects/batch"):
            wanted = json.loads(body)["objects"]
            actions = [{**item, "actions": {"upload": {"href": f"{self.url}/lfs/{item['oid']}"}}} for item in wanted]
            return 200, {"transfer": "basic", "objects": actions}
        if verb == "PUT" and path.startswith("/lfs/"):
            assert hashlib.sha256(body).hexdigest() == path.removeprefix("/lfs/")
            self.objects[path.removeprefix("/lfs/")] = body
            return 200, {}
        if found := re.fullmatch(r"/api/datasets/([^/]+/[^/]+)/commit/.+", path):
            return 200, self._commit(found[1], body)
        if found := re.fullmatch(r"/buckets/([^/]+/[^/]+)/resolve/(.+)", path):
            file = self.folder / "buckets" / found[1] / unquote(found[2])
            return (200, file.read_bytes()) if file.is_file() else (404, b"")
        if found := re.fullmatch(r"/api/jobs/([^/]+)", path):
            return self._start(found[1], json.loads(body)) if verb == "POST" else (200, self._listed(query))
        if found := re.fullmatch(r"/api/jobs/([^/]+)/([^/]+)/cancel", path):
            return self._cancel(found[2])
        return 404, {"error": f"nothing at {path}"}

    def _commit(self, repository: str, body: bytes) -> dict[str, str]:
        commit = f"{next(self._numbers):040x}"
        place = self.folder / "datasets" / repository
        for line in body.splitlines():
            item = json.loads(line)
            value = item["value"]
            if item["key"] == "file":
                _write(place / value["path"], base64.b64decode(value["content"]))
            elif item["key"] == "lfsFile":
                _write(place / value["path"], self.objects[value["oid"]])
        return {"commitOid": commit, "commitUrl": f"{self.url}/datasets/{repository}/commit/{commit}"}

    def _start(self, owner: str, asked: dict[str, Any]) -> tuple[int, Any]:
        JobSpec(**asked)  # the library's own reading of it
        assert set(asked) <= {
            "command", "arguments", "environment", "flavor", "timeoutSeconds", "labels", "volumes", "dockerImage",
        }, asked  # fmt: skip
        self.specs.append(asked)
        number = f"{next(self._numbers):024x}"
        places = {}
        for volume in asked["volumes"]:
            kind = "buckets" if volume["type"] == "bucket" else "datasets"
            real = self.folder / kind / volume["source"] / volume["path"]
            real.mkdir(parents=True, exist_ok=True)
            places[volume["mountPath"]] = (real, bool(volume.get("readOnly")))
        self.processes[number] = self._begin(number, asked, places)
        self.jobs[number] = {
            "id": number, "createdAt": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.000Z"), "labels": asked["labels"],
            "owner": {"id": "1", "name": owner, "type": "org"}, "flavor": asked["flavor"], "stage": None,
        }  # fmt: skip
        if self.lost_replies:
            self.lost_replies -= 1
            return 504, {"error": "the reply was lost"}
        return 200, self._shown(number)

    def _begin(self, _number: str, asked: dict[str, Any], places: dict[str, Mounted]) -> subprocess.Popen[bytes]:
        """Have a job run, where what is mounted has other names."""
        command = [*asked["command"], *asked["arguments"]]
        for place, (real, _) in places.items():
            command = [part.replace(place, str(real)) for part in command]
        environment = {name: os.environ[name] for name in ("PATH", "HOME", "PYTHONPATH") if name in os.environ}
        environment["PATH"] = f"{Path(sys.executable).parent}:{environment['PATH']}"
        return subprocess.Popen(
            command, env=environment, stdin=subprocess.DEVNULL, start_new_session=True,
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip

    def _kill(self, number: str) -> None:
        """End a job, if it runs."""
        process = self.processes[number]
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()

    def _shown(self, number: str) -> dict[str, Any]:
        job = dict(self.jobs[number])
        code = self.processes[number].poll()
        ended = "RUNNING" if code is None else "COMPLETED" if code == 0 else "ERROR"
        job["status"] = {"stage": job.pop("stage") or ended, "message": None}
        JobInfo(**job)
        return job

    def _listed(self, query: dict[str, list[str]]) -> list[dict[str, Any]]:
        wanted = dict(label.split("=", 1) for label in query.get("label", []))
        return [
            self._shown(number) for number, job in list(self.jobs.items()) if wanted.items() <= job["labels"].items()
        ]

    def _cancel(self, number: str) -> tuple[int, Any]:
        self._kill(number)
        self.jobs[number]["stage"] = "CANCELED"
        return 200, {}


class PodmanHub(HubStandIn):
    """The same with each job in a container of its own, without a network."""

    minute = 60.0
    """How many seconds one of the service's minutes has."""

    def _begin(self, number: str, asked: dict[str, Any], places: dict[str, Mounted]) -> subprocess.Popen[bytes]:
        mounts = [f"--volume={real}:{place}{':ro' if fixed else ''}" for place, (real, fixed) in places.items()]
        seconds = max(1, round(asked["timeoutSeconds"] / 60 * self.minute))
        return subprocess.Popen(
            ["podman", "run", "--rm", "--name", f"kci-hub-{number}", "--network=none", "--pull=never",
             f"--timeout={seconds}", *mounts, asked["dockerImage"], *asked["command"], *asked["arguments"]],
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip

    def _kill(self, number: str) -> None:
        """Podman itself ends once its container is gone; it may not have got so far as to have one."""
        process = self.processes[number]
        while process.poll() is None:
            kill = ["podman", "kill", f"kci-hub-{number}"]
            subprocess.run(kill, check=False, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(1)


def _mode(item: dict[str, Any]) -> str:
    return "lfs" if item["size"] > 10_000 else "regular"


def _write(path: Path, data: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
