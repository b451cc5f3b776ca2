"""Runs a build in a container with the same paths, user and kci, and without privileges or the
docker socket.
"""

from __future__ import annotations

import base64
import hashlib
import io
import os
import re
import secrets
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from kci.builders.process.run import Log, ProgramResult, program_output, run_in_group
from kci.config.discovery import find_root
from kci.errors import (
    UNFINISHED,
    BuildFailedError,
    FindingsError,
    MissingToolError,
    UnfinishedBuildError,
    UnsafeError,
    UsageError,
)
from kci.utils.atomic import write_atomic
from kci.utils.frozen import Frozen
from kci.utils.git import run_git
from kci.utils.walk import is_bytecode, walk
from kci.version import __version__

PACKAGE = Path(__file__).resolve().parents[2]
"""The installed kci."""

_EPOCH = (1980, 1, 1, 0, 0, 0)
_WHEEL = "Wheel-Version: 1.0\nGenerator: kci\nRoot-Is-Purelib: true\nTag: py3-none-any\n"


def running_wheel(cache: Path) -> tuple[Path, bytes]:
    """A reproducible wheel of this kci, and its place in a cache directory."""
    from importlib import metadata

    try:
        distribution = metadata.distribution("kci")
    except metadata.PackageNotFoundError as error:
        raise MissingToolError(
            f"the kci in {PACKAGE} is not installed, so no container can install it",
            "pip install it, or use --container none",
        ) from error
    files = {
        f"kci/{entry.name}": entry.path.read_bytes()
        for entry in walk(PACKAGE)
        if not is_bytecode(entry.name)
    }
    info = f"kci-{__version__}.dist-info"
    for name in ("METADATA", "entry_points.txt"):
        files[f"{info}/{name}"] = (distribution.read_text(name) or "").encode()
    files[f"{info}/WHEEL"] = _WHEEL.encode()
    record = f"{info}/RECORD,,\n"
    for name, content in sorted(files.items()):
        digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
        record += f"{name},sha256={digest},{len(content)}\n"
    files[f"{info}/RECORD"] = record.encode()
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, content in sorted(files.items()):
            entry = zipfile.ZipInfo(name, _EPOCH)
            entry.external_attr = 0o644 << 16
            archive.writestr(entry, content, zipfile.ZIP_DEFLATED)
    data = buffer.getvalue()
    folder = cache / "wheels" / hashlib.sha256(data).hexdigest()[:16]
    return folder / f"kci-{__version__}-py3-none-any.whl", data


ENGINES = ("docker", "podman")
"""Supported engines, in order of preference."""

ENGINE_VARIABLE = "KCI_CONTAINER_ENGINE"
"""Variable with the engine, to override the order."""

_VERSION = {"docker": "{{.Server.Version}}", "podman": "{{.Client.Version}}"}
_REMOVE = {"docker": ("rm", "--force"), "podman": ("rm", "--force", "--time=0")}
_INIT_OF_PODMAN = ("/usr/libexec/podman/catatonit", "/usr/lib/podman/catatonit")

# Passed by name, so that values such as passwords stay out of command lines and logs.
FORWARDED_VARIABLES = (
    "GITHUB_RUN_ATTEMPT",
    "GITHUB_RUN_ID",
    "HTTPS_PROXY",
    "HTTP_PROXY",
    "KCI_ATTEMPT",
    "KCI_RUN",
    "KCI_TORCH_INDEX",
    "MAX_JOBS",
    "NO_PROXY",
    "NVCC_THREADS",
    "PIP_EXTRA_INDEX_URL",
    "PIP_INDEX_URL",
    "PIP_NO_INDEX",
    "http_proxy",
    "https_proxy",
    "no_proxy",
)

PATH_VARIABLES = (
    "CCACHE_CONFIGPATH",
    "ICECC_VERSION",
    "PIP_CERT",
    "PIP_FIND_LINKS",
    "SCCACHE_CONF",
    "SSL_CERT_FILE",
)
"""Variables with paths, which are mounted."""

# An image name, not an option of docker; then one with a digest.
_IMAGE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/:@-]*")
_BY_DIGEST = re.compile(r"[A-Za-z0-9._/:-]+@sha256:[0-9a-f]{64}")
_ENGINE_SECONDS = 15
_KINDS = {
    kind.exit_code: kind for kind in (FindingsError, UsageError, MissingToolError, UnsafeError)
}
"""Errors besides a failed build that kci in the container reports, by exit code."""

_ENGINE_CODES = (125, 126, 127)
"""docker's own exit codes: a failure of docker, or no program to run."""

# Arguments: wheel of kci, name of the kept environment, arguments of kci.
# Concurrent containers each make an environment and link it by name. A later start needs no
# network.
SCRIPT = """\
set -eu
kci="$1"
name="$2"
shift 2
found=
wheels=/opt/python
for python in "$wheels/cp313-cp313/bin/python" "$wheels/cp312-cp312/bin/python" \\
    "$wheels/cp311-cp311/bin/python" python3.13 python3.12 python3.11 python3; do
  if command -v "$python" >/dev/null 2>&1 \\
      && "$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1; then
    found="$python"
    break
  fi
done
if [ -z "$found" ]; then
  echo "this image has no Python 3.11 or newer, which kci needs" >&2
  exit 3
fi
kept="$KCI_CACHE/containers/$name"
if "$kept/bin/python" -c 'import kci' >/dev/null 2>&1; then
  exec "$kept/bin/kci" "$@"
fi
mkdir -p "$KCI_CACHE/containers"
room="$(mktemp -d "$kept.XXXXXX")"
"$found" -m venv "$room" >&2
"$room/bin/python" -m pip install --quiet --disable-pip-version-check "$kci" >&2
ln -sfn "$room" "$kept"
exec "$room/bin/kci" "$@"
"""


class ContainerBuild(Frozen):
    """A `kci build` in an image."""

    image: str
    kernel_dir: Path
    """Its repository is mounted, because the kernel id depends on it."""
    arguments: Sequence[str]
    """Arguments of kci with absolute paths, without `--container`."""
    writable: Sequence[Path]
    """Directories for results; the rest of the machine is read-only."""
    cache: Path
    readable: Sequence[Path] = ()
    """Additional files; all paths are absolute."""


def container_engine() -> str:
    """The engine: the chosen one, else docker or podman, else docker.

    Raises UsageError for an unknown choice.
    """
    choice = os.environ.get(ENGINE_VARIABLE)
    if choice and choice not in ENGINES:
        raise UsageError(
            f"{ENGINE_VARIABLE}={choice} is not an engine that kci knows",
            f"use one of {', '.join(ENGINES)}",
        )
    return choice or next((name for name in ENGINES if shutil.which(name)), ENGINES[0])


def build_command(build: ContainerBuild) -> list[str]:
    """The docker command of a build. Raises UsageError or MissingToolError."""
    image, name, cache = build.image, container_engine(), build.cache.resolve()
    if not _IMAGE.fullmatch(image):
        raise UsageError(
            f"{image!r} is not the name of an image", "write it as registry/name:tag or name@digest"
        )
    command = [name, "run", "--rm", "--cap-drop=ALL", "--security-opt=no-new-privileges"]
    # an init forwards signals; podman needs an extra package for it
    if (
        name == "docker"
        or shutil.which("catatonit")
        or any(Path(path).exists() for path in _INIT_OF_PODMAN)
    ):
        command.insert(3, "--init")
    if sys.platform != "win32":
        command.append(f"--user={os.getuid()}:{os.getgid()}")
        if name == "podman" and os.getuid() != 0:
            command.append("--userns=keep-id")
    named = {*FORWARDED_VARIABLES, *PATH_VARIABLES} & os.environ.keys()
    named.update(_cache_variables())
    command += [*_mounts(build), *(f"--env={variable}" for variable in sorted(named))]
    # without a home, pip and git would use the root directory
    command += [f"--env=HOME={cache / 'home'}", f"--env=KCI_CACHE={cache}"]
    command += [f"--workdir={build.kernel_dir}", image, "sh", "-c", SCRIPT, "kci-in-container"]
    # an environment fits one image and one kci
    wheel = str(running_wheel(cache)[0])
    kept = hashlib.sha256(f"{image}\n{wheel}".encode()).hexdigest()[:16]
    return [*command, wheel, kept, *build.arguments]


def _mounts(build: ContainerBuild) -> Iterator[str]:
    # the same paths as outside, each behind those that it lies in
    root = find_root(build.kernel_dir)[0]
    readable = [root, *build.readable]
    # the git directory may lie elsewhere
    if (root / ".git").is_file() and (
        common := run_git(root, "rev-parse", "--path-format=absolute", "--git-common-dir")
    ):
        readable.append(Path(os.fsdecode(common).strip()))
    words = (word for name in PATH_VARIABLES for word in os.environ.get(name, "").split())
    readable += [Path(word) for word in words if word.startswith("/") and Path(word).exists()]
    writable = (path.resolve() for path in (build.cache, *build.writable))
    places = dict.fromkeys(readable, ",readonly") | dict.fromkeys(writable, "")
    for path, how in sorted(places.items()):
        if any(char in str(path) for char in ',"\n\r'):
            raise UsageError(
                f"{str(path)!r} cannot be mounted into a container",
                "use a path without commas and quotes",
            )
        yield f"--mount=type=bind,source={path},target={path}{how}"


def run_in_container(build: ContainerBuild, log: Log) -> ProgramResult:
    """Run a build in an image.

    Raises MissingToolError without docker or image, and kci's own errors by exit code.
    """
    require_engine()
    # docker would create missing directories as root
    image, cache = build.image, build.cache.resolve()
    for place in (*build.writable, cache / "home"):
        place.mkdir(parents=True, exist_ok=True)
    wheel, data = running_wheel(cache)
    if not wheel.is_file():
        write_atomic(wheel, data)
    command = build_command(build)
    container = f"kci-{os.getpid()}-{secrets.token_hex(4)}"
    named = [*command[:2], f"--name={container}", *command[2:]]
    engine = command[0]
    # On a stop the container must be removed; podman's monitor writes a file `oom` into its working
    # directory.
    with tempfile.TemporaryDirectory(prefix="kci-container-") as folder:
        undo = [engine, *_REMOVE[engine], container]
        done = run_in_group(named, log, cwd=Path(folder), undo=undo)
    if done.code == 0:
        _tell_digest(image, log)
        return done
    if done.code in _ENGINE_CODES:
        raise MissingToolError(
            f"{engine} cannot run {image}:\n{done.tail()}",
            "check the image's name, and that this machine may fetch it",
        )
    unfinished = UNFINISHED.search(done.output)
    if unfinished and done.code == UnfinishedBuildError.exit_code:
        raise UnfinishedBuildError(
            unfinished["what"], int(unfinished["done"]), int(unfinished["total"])
        )
    kind = _KINDS.get(done.code, BuildFailedError)
    raise kind(f"the build in {image} ended with exit code {done.code}\n{done.tail()}")


def _tell_digest(image: str, log: Log) -> None:
    # a tag can move
    if "@" in image:
        return
    words = ("image", "inspect", "--format", "{{index .RepoDigests 0}}", image)
    name = program_output(container_engine(), *words).strip().rpartition("\n")[2]
    message = (
        f"this time it was {name}" if _BY_DIGEST.fullmatch(name) else "its digest is not known here"
    )
    log(f"{image} is a tag, which moves; {message}. Name the image by its digest in kci.toml")


def named_image(option: str, own: str) -> str | None:
    """The image of `--container`; `auto` is the leg's own, None this machine."""
    return {"none": None, "auto": own or None}.get(option, option)


def choose_image(option: str, own: str, log: Log) -> str | None:
    """As `named_image`, or None if `auto` finds no engine.

    Raises MissingToolError without an engine.
    """
    if (image := named_image(option, own)) is None:
        return None
    try:
        require_engine()
    except MissingToolError as error:
        if option != "auto":
            raise
        log(f"{error.message}: building on this machine instead of in {image}")
        return None
    return image


def require_engine() -> str:
    """The container engine, which answers; raises MissingToolError, or UsageError for an
    unknown one.
    """
    name = container_engine()
    if not shutil.which(name):
        raise MissingToolError(
            f"{name} is not installed on this machine",
            f"install {' or '.join(ENGINES)}, or use --container none",
        )
    try:
        done = subprocess.run(
            [name, "version", "--format", _VERSION[name]],
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_ENGINE_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise MissingToolError(
            f"{name} does not answer: {error}", "start it, or use --container none"
        ) from error
    if done.returncode != 0:
        reason = (done.stderr or done.stdout).strip()
        raise MissingToolError(
            f"{name} does not answer: {reason}", "start its service, or use --container none"
        )
    return name


def _cache_variables() -> list[str]:
    # compiler caches read them; those with paths of this machine are left out
    prefixes: tuple[str, ...] = ("CCACHE_", "SCCACHE_")
    if not os.environ.keys().isdisjoint(("SCCACHE_BUCKET", "SCCACHE_CONF")):
        prefixes = (*prefixes, "AWS_")  # S3 credentials
    return [
        name
        for name, value in os.environ.items()
        if name.startswith(prefixes)
        and name not in PATH_VARIABLES
        and not value.startswith(("/", "~"))
    ]
