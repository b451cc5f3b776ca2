"""Hugging Face Jobs, through huggingface_hub.

Sources go in as a commit of a private dataset repository, which a job mounts read-only at that very commit; what a job
hands back it writes into a bucket that it mounts. So no job is ever given a token.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any
from urllib.parse import quote

from kci.config.engine_settings import EngineSettings
from kci.errors import FindingsError, KciError, MissingToolError, UsageError
from kci.remote.engine_choice import flavor_for
from kci.remote.job import JOB_FILE, RESULT_FILE, SCRIPT_NAME, EngineJob, JobState, JobStatus, printable
from kci.remote.protocol import Batch, Engine, EngineAwayError, EngineHome, Handles

_SPARE_MINUTES = 5
_CHUNK = 1024 * 1024
_JOB, _INPUTS, _RESULTS = "/kci/job", "/kci/inputs", "/kci/results"
_LABEL, _RUN_LABEL = "kci-job", "kci-run"
# A job's folder has to be writable, which a repository's is not. The result is copied last: it says that all is there.
_SCRIPT = f"""\
set -u
here=$(mktemp -d)
cp {_JOB}/* "$here/" && ln -s {_INPUTS} "$here/inputs" || exit 1
code=0
python3 "$here/{SCRIPT_NAME}" run "$here" || code=$?
mkdir -p {_RESULTS}/out
cp "$here/out/"* {_RESULTS}/out/ 2>/dev/null
cp "$here/log.txt" {_RESULTS}/log.txt
if [ -f "$here/{RESULT_FILE}" ]; then cp "$here/{RESULT_FILE}" {_RESULTS}/{RESULT_FILE}; fi
exit $code
"""


class HfJobsEngine(Engine):
    """The jobs of one user or organization."""

    pause = 10.0

    def __init__(self, settings: EngineSettings, home: EngineHome) -> None:
        try:
            import huggingface_hub
            import huggingface_hub.errors
            import huggingface_hub.utils
        except ImportError:
            raise MissingToolError("huggingface_hub is not installed", hint="pip install 'kci[hf]'") from None
        for name in ("namespace", "repository", "bucket"):
            if not getattr(settings, name):
                hint = "set it in kci.toml: [engines.<name>]; docs/engines.md says what for"
                raise UsageError(f"an engine of the type `hf-jobs` needs a `{name}`", hint=hint)
        super().__init__(settings, home)
        self.library: Any = huggingface_hub
        self.library.utils.disable_progress_bars()  # they would write across kci's own
        self.api: Any = huggingface_hub.HfApi()

    def submit(self, batch: Batch) -> Handles:
        revision = self._send(batch)
        return {job.name: self._start(job, revision) for job in batch.jobs}

    def find(self, batch: Batch) -> Handles:
        names = {job.name for job in batch.jobs}
        jobs = self._listed()
        return {name: job.id for job in jobs if (name := (job.labels or {}).get(_LABEL)) in names}

    def poll(self, handles: Handles) -> Mapping[str, JobStatus]:
        known = {job.id: job.status for job in self._listed()}
        return {name: self._status(name, known.get(handle)) for name, handle in handles.items()}

    def cancel(self, handles: Handles) -> None:
        for handle in handles.values():
            with self._asking():
                self.api.cancel_job(job_id=handle, namespace=self.settings.namespace)

    def read(self, name: str, handle: str, file: str) -> Iterator[bytes]:  # noqa: ARG002
        place = quote(f"{self.home.run}/{name}/{file}", safe="")
        url = f"{self.api.endpoint}/buckets/{self.settings.bucket}/resolve/{place}"
        headers = self.library.utils.build_hf_headers(token=self.api.token)
        session = self.library.utils.get_session()
        with self._asking(), session.stream("GET", url, headers=headers, follow_redirects=True) as answer:
            if answer.status_code == 404:
                raise FileNotFoundError(file)
            if answer.status_code != 200:
                raise EngineAwayError(f"the bucket answers {answer.status_code} for {file}")
            yield from answer.iter_bytes(_CHUNK)

    def _send(self, batch: Batch) -> str:
        add = self.library.CommitOperationAdd
        files = {}
        self.write(batch)
        for job in batch.jobs:
            for name in (JOB_FILE, SCRIPT_NAME):
                files[f"{self.home.run}/jobs/{job.name}/{name}"] = self.home.job(job.name) / name
            for item in job.inputs:
                files[f"{self.home.run}/inputs/{item.sha256}"] = self.home.inputs / item.sha256
        operations = [add(path_in_repo=name, path_or_fileobj=str(path)) for name, path in sorted(files.items())]
        with self._asking():
            done = self.api.create_commit(
                self.settings.repository, operations, commit_message=batch.name, repo_type="dataset"
            )
        return str(done.oid)

    def _start(self, job: EngineJob, revision: str) -> str:
        image = self.settings.image or job.image
        if not image:
            hint = "set `image` of the engine in kci.toml"
            raise UsageError(f"neither {job.leg} nor its engine has an image", hint=hint)
        flavor = flavor_for(self.settings, job.hardware)
        if flavor is None:
            hint = "lower `cores` or `memory-gb`, or name a `flavor`"
            raise UsageError(f"Hugging Face has no machine with {job.cores} cores and {job.memory_gb} GB", hint=hint)
        volume, repository = self.library.Volume, self.settings.repository
        volumes = [
            volume(type="dataset", source=repository, revision=revision, mount_path=_JOB,
                   path=f"{self.home.run}/jobs/{job.name}", read_only=True),
            volume(type="dataset", source=repository, revision=revision, mount_path=_INPUTS,
                   path=f"{self.home.run}/inputs", read_only=True),
            volume(type="bucket", source=self.settings.bucket, mount_path=_RESULTS,
                   path=f"{self.home.run}/{job.name}"),
        ]  # fmt: skip
        with self._asking():
            started = self.api.run_job(
                image=image,
                command=["sh", "-c", _SCRIPT],
                flavor=flavor,
                timeout=f"{job.timeout + _SPARE_MINUTES}m",
                name=job.name,
                labels={_LABEL: job.name, _RUN_LABEL: self.home.run},
                volumes=volumes,
                namespace=self.settings.namespace,
            )
        return str(started.id)

    def _listed(self) -> list[Any]:
        labels = {_RUN_LABEL: self.home.run}
        with self._asking():
            return list(self.api.list_jobs(labels=labels, namespace=self.settings.namespace))

    def _status(self, name: str, said: Any) -> JobStatus:
        stage, message = ("", "") if said is None else (str(said.stage), printable(said.message or "")[:200])
        if stage == "SCHEDULING":
            return JobStatus(JobState.QUEUED, message)
        if stage == "RUNNING":
            return JobStatus(JobState.RUNNING)
        try:
            for _ in self.read(name, "", RESULT_FILE):
                return JobStatus(JobState.ENDED)
        except FileNotFoundError:
            pass
        if stage == "CANCELED":
            return JobStatus(JobState.STOPPED, "it was cancelled there")
        why = f"Hugging Face says {stage}" if stage else "Hugging Face no longer knows it"
        return JobStatus(JobState.LOST, f"{why} {message}".strip())

    @contextmanager
    def _asking(self) -> Iterator[None]:
        """Have what can go wrong with the Hub become one of kci's errors."""
        try:
            yield
        except (KciError, FileNotFoundError):
            raise
        except Exception as error:
            raise self._judged(error) from error

    def _judged(self, error: Exception) -> Exception:
        """The error of kci's that stands for one of the library's, or the error itself."""
        if type(error) is RuntimeError and isinstance(error.__cause__, Exception):  # a file that was not uploaded
            return self._judged(error.__cause__)
        answer = getattr(error, "response", None)
        if isinstance(error, self.library.errors.HfHubHTTPError) and answer is not None:
            said = printable(str(getattr(error, "server_message", None) or error))[:300]
            if answer.status_code in (408, 425, 429) or answer.status_code >= 500:
                return EngineAwayError(f"Hugging Face answers {answer.status_code}: {said}")
            hint = "the token needs `job.write` and write access to the repository; see `hf auth login`"
            return FindingsError(f"Hugging Face refuses ({answer.status_code}): {said}", hint=hint)
        # The library does not export the errors of the HTTP client that it uses.
        if type(error).__module__.partition(".")[0].startswith("httpx") or isinstance(error, ConnectionError):
            return EngineAwayError(f"Hugging Face cannot be reached: {str(error) or type(error).__name__}")
        return error
