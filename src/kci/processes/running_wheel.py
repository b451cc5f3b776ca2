"""The kci that is running, as a wheel: what a container installs, so that both are the same code without any index."""

from __future__ import annotations

import base64
import hashlib
import io
import zipfile
from pathlib import Path

import msgspec

from kci.files.replace import write_atomic
from kci.files.walk import is_bytecode, walk
from kci.version import __version__

PACKAGE = Path(__file__).resolve().parent.parent
"""Where kci itself lies."""

_EPOCH = (1980, 1, 1, 0, 0, 0)
_WHEEL = "Wheel-Version: 1.0\nGenerator: kci\nRoot-Is-Purelib: true\nTag: py3-none-any\n"


class RunningWheel(msgspec.Struct, frozen=True):
    """The wheel, in memory."""

    digest: str
    data: bytes

    def place(self, cache: Path) -> Path:
        """Where it lies in a cache directory; `write` puts it there."""
        return cache / "wheels" / self.digest[:16] / f"kci-{__version__}-py3-none-any.whl"

    def write(self, cache: Path) -> Path:
        """Put it into a cache directory, unless it is there."""
        place = self.place(cache)
        if not place.is_file():
            write_atomic(place, self.data)
        return place


def running_wheel() -> RunningWheel | None:
    """The wheel of this process's kci; None if it is not installed, so that its dependencies are unknown.

    The same files give the same bytes.
    """
    from importlib import metadata

    try:
        distribution = metadata.distribution("kci")
    except metadata.PackageNotFoundError:
        return None
    files = {f"kci/{entry.name}": entry.path.read_bytes() for entry in walk(PACKAGE) if not is_bytecode(entry.name)}
    info = f"kci-{__version__}.dist-info"
    for name in ("METADATA", "entry_points.txt"):
        files[f"{info}/{name}"] = (distribution.read_text(name) or "").encode()
    files[f"{info}/WHEEL"] = _WHEEL.encode()
    lines = [f"{name},sha256={_hash(content)},{len(content)}\n" for name, content in sorted(files.items())]
    files[f"{info}/RECORD"] = "".join([*lines, f"{info}/RECORD,,\n"]).encode()
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w") as archive:
        for name, content in sorted(files.items()):
            entry = zipfile.ZipInfo(name, _EPOCH)
            entry.external_attr = 0o644 << 16
            archive.writestr(entry, content, zipfile.ZIP_DEFLATED)
    data = made.getvalue()
    return RunningWheel(hashlib.sha256(data).hexdigest(), data)


def _hash(content: bytes) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
