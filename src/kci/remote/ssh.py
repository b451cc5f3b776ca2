"""A host over SSH, through asyncssh. The host's key has to be known already; nothing is trusted at first sight."""

from __future__ import annotations

import asyncio
import shlex
from collections.abc import Coroutine, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

from kci.config.engine_settings import EngineSettings
from kci.errors import FindingsError, MissingToolError, UnsafeError, UsageError
from kci.remote.job import JOB_FILE, SCRIPT_NAME
from kci.remote.local_engine import ScriptEngine
from kci.remote.protocol import Batch, EngineAwayError, EngineHome

_CONNECT_SECONDS = 15
_CALL_SECONDS = 600
_SLOWEST = 64 * 1024
"""Bytes a second: a connection that sends fewer counts as broken."""
_CHUNK = 1024 * 1024
_FOLDER = ".cache/kci/engine"

_Value = TypeVar("_Value")


class SshEngine(ScriptEngine):
    """One host."""

    def __init__(self, settings: EngineSettings, home: EngineHome) -> None:
        try:
            import asyncssh
        except ImportError:
            raise MissingToolError("asyncssh is not installed", hint="pip install 'kci[ssh]'") from None
        if not settings.host:
            raise UsageError("an engine of the type `ssh` needs a `host`", hint="set it in kci.toml: [engines.<name>]")
        super().__init__(settings, home)
        self.library: Any = asyncssh
        known = settings.known_hosts or "~/.ssh/known_hosts"
        self.known_hosts = Path(known).expanduser()
        if not self.known_hosts.is_file():
            hint = "connect once by `ssh`, which asks whether the key is right, or set `known-hosts`"
            raise UsageError(f"there is no {known}, so the key of {settings.host} is not known", hint=hint)
        self.folder = f"{settings.folder or _FOLDER}/{home.run}"
        self.runner = asyncio.Runner()
        self.connection: Any = None

    def put(self, batch: Batch) -> None:
        """Send what is not there yet; a file has its name only when it is whole."""
        self.write(batch)
        size = sum(item.size for job in batch.jobs for item in job.inputs)
        self._do(self._put(batch), _CALL_SECONDS + size / _SLOWEST)

    def script(self, verb: str, names: Sequence[str]) -> list[str]:
        """Ask the host's own Python. Without any job's folder nothing was submitted."""
        places = " ".join(shlex.quote(f"{self.folder}/jobs/{name}") for name in names)
        python = shlex.quote(self.settings.python)
        # The script of any of the jobs: they are the same.
        found = f's="$f/{SCRIPT_NAME}"; if [ -f "$s" ]; then exec {python} "$s" {verb} {places}; fi'
        done = self._do(self._run(f"for f in {places}; do {found}; done; for f in {places}; do echo unknown; done"))
        words = str(done.stdout).split()
        if done.exit_status != 0 or len(words) != len(names):
            said = str(done.stderr).strip()[-300:]
            raise EngineAwayError(f"{self.settings.host} cannot be asked about its jobs: {said!a}")
        return words

    def read(self, name: str, handle: str, file: str) -> Iterator[bytes]:  # noqa: ARG002
        place, offset = f"{self.folder}/jobs/{name}/{file}", 0
        while data := self._do(self._read(place, offset)):
            yield data
            offset += len(data)

    def close(self) -> None:
        if self.connection is not None:
            self.connection.abort()
        self.runner.close()

    async def _put(self, batch: Batch) -> None:
        connection = await self._connected()
        async with connection.start_sftp_client() as sftp:
            await sftp.makedirs(f"{self.folder}/inputs", exist_ok=True)
            for item in {item.sha256: item for job in batch.jobs for item in job.inputs}.values():
                place = f"{self.folder}/inputs/{item.sha256}"
                if not await sftp.exists(place):
                    await self._send(sftp, self.home.inputs / item.sha256, place)
            for job in batch.jobs:
                folder = f"{self.folder}/jobs/{job.name}"
                await sftp.makedirs(folder, exist_ok=True)
                for file in (SCRIPT_NAME, JOB_FILE):
                    await self._send(sftp, self.home.job(job.name) / file, f"{folder}/{file}")

    async def _send(self, sftp: Any, source: Path, place: str) -> None:
        await sftp.put(str(source), f"{place}.new")
        await sftp.posix_rename(f"{place}.new", place)

    async def _read(self, place: str, offset: int) -> bytes:
        connection = await self._connected()
        async with connection.start_sftp_client() as sftp:
            try:
                kind = (await sftp.lstat(place)).type
            except self.library.SFTPNoSuchFile:
                raise FileNotFoundError(place) from None
            if kind != self.library.FILEXFER_TYPE_REGULAR:
                raise UnsafeError(f"{place} on {self.settings.host} is not a plain file")
            async with sftp.open(place, "rb") as file:
                return bytes(await file.read(16 * _CHUNK, offset))

    async def _run(self, line: str) -> Any:
        connection = await self._connected()
        done = await connection.run(line, check=False, stdin=self.library.DEVNULL, encoding="utf-8", errors="replace")
        if done.exit_status is None:  # the connection was lost; whether the command ran cannot be told
            raise EngineAwayError(f"the connection to {self.settings.host} was lost")
        return done

    async def _connected(self) -> Any:
        if self.connection is None or self.connection.is_closed():
            keys = {"client_keys": [str(Path(self.settings.identity).expanduser())]} if self.settings.identity else {}
            self.connection = await self.library.connect(
                self.settings.host,
                self.settings.port,
                config=None,  # nothing there may loosen what is checked here
                known_hosts=str(self.known_hosts),
                username=self.settings.user or (),
                connect_timeout=_CONNECT_SECONDS,
                keepalive_interval=15,
                **keys,
            )
        return self.connection

    def _do(self, work: Coroutine[Any, Any, _Value], seconds: float = _CALL_SECONDS) -> _Value:
        """Run a step to its end; what can go wrong with a host becomes one of kci's errors."""
        host = self.settings.host
        try:
            return self.runner.run(asyncio.wait_for(work, seconds))
        except self.library.HostKeyNotVerifiable as error:
            hint = f"find out why; if the new key is right, change {self.known_hosts}"
            raise UnsafeError(f"the key of {host} is not the one in {self.known_hosts}: {error}", hint=hint) from error
        except self.library.PermissionDenied as error:
            hint = "set `user` and `identity` of the engine in kci.toml"
            raise FindingsError(f"{host} does not let this user in: {error}", hint=hint) from error
        except (self.library.Error, TimeoutError, OSError) as error:
            if isinstance(error, FileNotFoundError):
                raise
            self.connection = None
            raise EngineAwayError(f"{host} cannot be reached: {str(error) or type(error).__name__}") from error
