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
from collections.abc import Iterable, Sequence
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


class RunningWheel(Frozen):
    """The wheel in memory."""

    digest: str
    data: bytes

    def place(self, cache: Path) -> Path:
        """Path in a cache directory."""
        return cache / "wheels" / self.digest[:16] / f"kci-{__version__}-py3-none-any.whl"

    def write(self, cache: Path) -> Path:
        """Write the wheel to a cache directory, unless it exists."""
        place = self.place(cache)
        if not place.is_file():
            write_atomic(place, self.data)
        return place


def running_wheel() -> RunningWheel | None:
    """A reproducible wheel of this kci; None for a checkout, whose dependencies are unknown."""
    from importlib import metadata

    try:
        distribution = metadata.distribution("kci")
    except metadata.PackageNotFoundError:
        return None
    files = {
        f"kci/{entry.name}": entry.path.read_bytes()
        for entry in walk(PACKAGE)
        if not is_bytecode(entry.name)
    }
    info = f"kci-{__version__}.dist-info"
    for name in ("METADATA", "entry_points.txt"):
        files[f"{info}/{name}"] = (distribution.read_text(name) or "").encode()
    files[f"{info}/WHEEL"] = _WHEEL.encode()
    lines = [
        f"{name},sha256={_hash(content)},{len(content)}\n"
        for name, content in sorted(files.items())
    ]
    files[f"{info}/RECORD"] = "".join([*lines, f"{info}/RECORD,,\n"]).encode()
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, content in sorted(files.items()):
            entry = zipfile.ZipInfo(name, _EPOCH)
            entry.external_attr = 0o644 << 16
            archive.writestr(entry, content, zipfile.ZIP_DEFLATED)
    data = buffer.getvalue()
    return RunningWheel(hashlib.sha256(data).hexdigest(), data)


def _hash(content: bytes) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()


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

# Arguments: wheel or directory of kci, name of the kept environment or empty, arguments of kci.
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
if [ -n "$name" ] && "$kept/bin/python" -c 'import kci' >/dev/null 2>&1; then
  exec "$kept/bin/kci" "$@"
fi
if [ -n "$name" ]; then
  mkdir -p "$KCI_CACHE/containers"
  room="$(mktemp -d "$kept.XXXXXX")"
else
  room="$(mktemp -d)"
fi
"$found" -m venv "$room" >&2
"$room/bin/python" -m pip install --quiet --disable-pip-version-check "$kci" >&2
if [ -n "$name" ]; then
  ln -sfn "$room" "$kept"
fi
exec "$room/bin/kci" "$@"
"""


class Mount(Frozen, order=True):
    """A directory in the container, at the same path as outside."""

    path: Path
    writable: bool = False


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
    """Additional files."""


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


def container_command(
    image: str,
    mounts: Iterable[Mount],
    command: Sequence[str],
    *,
    workdir: Path | None = None,
    environment: Iterable[str] = (),
    settings: Iterable[tuple[str, str]] = (),
) -> list[str]:
    """The docker command for an image: `environment` is passed by name, `settings` by value.

    Raises UsageError.
    """
    if not _IMAGE.fullmatch(image):
        raise UsageError(
            f"{image!r} is not the name of an image", "write it as registry/name:tag or name@digest"
        )
    name = container_engine()
    arguments = [name, "run", "--rm", "--cap-drop=ALL", "--security-opt=no-new-privileges"]
    # an init forwards signals; podman needs an extra package for it
    if (
        name == "docker"
        or shutil.which("catatonit")
        or any(Path(path).exists() for path in _INIT_OF_PODMAN)
    ):
        arguments.insert(3, "--init")
    if sys.platform != "win32":
        arguments.append(f"--user={os.getuid()}:{os.getgid()}")
        if name == "podman" and os.getuid() != 0:
            arguments.append("--userns=keep-id")
    arguments += [
        _mount(mount) for mount in sorted({item.path: item for item in sorted(mounts)}.values())
    ]
    arguments += [f"--env={variable}" for variable in sorted(environment)]
    arguments += [f"--env={variable}={value}" for variable, value in sorted(settings)]
    if workdir:
        arguments.append(f"--workdir={workdir}")
    return [*arguments, image, *command]


def build_command(build: ContainerBuild) -> list[str]:
    """The docker command of a build. Raises UsageError as `container_command`."""
    cache = build.cache.resolve()
    source, digest, mounts = kci_source(cache)
    mounts = [*mounts, *_sources(build.kernel_dir), Mount(cache, writable=True)]
    mounts += [Mount(path.resolve()) for path in build.readable]
    mounts += [Mount(path.resolve(), writable=True) for path in build.writable]
    mounts += [
        Mount(Path(word))
        for name in PATH_VARIABLES
        for word in os.environ.get(name, "").split()
        if word.startswith("/") and Path(word).exists()
    ]
    variables = [name for name in (*FORWARDED_VARIABLES, *PATH_VARIABLES) if name in os.environ]
    # an environment fits one image and one kci
    kept = hashlib.sha256(f"{build.image}\n{digest}".encode()).hexdigest()[:16] if digest else ""
    # without a home, pip and git would use the root directory
    return container_command(
        build.image,
        mounts,
        ["sh", "-c", SCRIPT, "kci-in-container", source, kept, *build.arguments],
        workdir=build.kernel_dir.resolve(),
        environment=[*variables, *_cache_variables()],
        settings=[("HOME", str(cache / "home")), ("KCI_CACHE", str(cache))],
    )


def run_in_container(build: ContainerBuild, log: Log) -> ProgramResult:
    """Run a build in an image.

    Raises MissingToolError without docker or image, and kci's own errors by exit code.
    """
    require_engine()
    # docker would create missing directories as root
    image, cache = build.image, build.cache.resolve()
    for place in (*build.writable, cache / "home"):
        place.mkdir(parents=True, exist_ok=True)
    if wheel := running_wheel():
        wheel.write(cache)
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


def kci_source(cache: Path) -> tuple[str, str, list[Mount]]:
    """Find what pip installs in the container, its digest, and mounts: a wheel of this kci, or its
    checkout.
    """
    wheel = running_wheel()
    if wheel:
        return str(wheel.place(cache.resolve())), wheel.digest, []
    checkout = PACKAGE.parent.parent
    return str(checkout), "", [Mount(checkout)]


def _sources(kernel_dir: Path) -> list[Mount]:
    # the git directory may lie elsewhere
    place = find_root(kernel_dir)[0]
    if (place / ".git").is_file():
        common = run_git(place, "rev-parse", "--path-format=absolute", "--git-common-dir")
        return [Mount(place), *([Mount(Path(os.fsdecode(common).strip()))] if common else [])]
    return [Mount(place)]


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


def _mount(mount: Mount) -> str:
    text = str(mount.path)
    if any(char in text for char in ',"\n\r') or not mount.path.is_absolute():
        raise UsageError(
            f"{text!r} cannot be mounted into a container", "use a path without commas and quotes"
        )
    return f"--mount=type=bind,source={text},target={text}{'' if mount.writable else ',readonly'}"
