"""Is what is crossed what a machine of that system makes? The same commands, by the compilers of Debian for arm64.

The two compilers are one release of GCC, packaged twice: `.comment` names the package, and the build id is a hash that
covers it.

They run under qemu in a namespace of their own, where the kernel knows qemu (binfmt_misc, Linux 6.7 or newer).
"""

from __future__ import annotations

import shlex
import shutil
import subprocess
from pathlib import Path

import msgspec
import pytest

from buildkit import quiet
from cli.runner import kci_process
from conftest import ROOT
from kci.files.cache import default_cache
from kci.toolchains import emulation
from kci.toolchains.emulation import emulation_data
from kci.toolchains.environment import tvm_ffi_environment

ARM = "aarch64-linux"
VARIANT = f"tvm-ffi01-cpu-{ARM}"
COMPILERS = ("dash", "g++-12", "g++")
_MAGIC = r":arm:M::\x7fELF\x02\x01\x01\x00\x00\x00\x00\x00\x00\x00\x00\x00\x02\x00\xb7\x00"
_MASK = r":\xff\xff\xff\xff\xff\xff\xff\x00\xff\xff\xff\xff\xff\xff\xff\xff\xfe\xff\xff\xff:"
ENTER = f"""
set -e
known=$(mktemp -d)
mount -t binfmt_misc none "$known"
printf %s '{_MAGIC}{_MASK}'"$QEMU:F" > "$known/register"
mkdir -p "$ROOT_DIR/dev" "$ROOT_DIR/tmp" "$ROOT_DIR$SHARED" "$ROOT_DIR$HEADERS" "$ROOT_DIR$LED_TO"
mount --rbind /dev "$ROOT_DIR/dev"
mount --bind "$SHARED" "$ROOT_DIR$SHARED"
mount --bind "$HEADERS" "$ROOT_DIR$HEADERS"
mount --bind "$LED_TO" "$ROOT_DIR$LED_TO"
exec chroot "$ROOT_DIR" /bin/sh -e "$SCRIPT"
"""
TRY = f"mount -t binfmt_misc none /mnt && printf %s '{_MAGIC}{_MASK}'\"$QEMU:F\" > /mnt/register"


def alone(script: str, **environment: str | Path) -> subprocess.CompletedProcess[str]:
    variables = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", **{name: str(value) for name, value in environment.items()}}
    command = ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c", script]
    return subprocess.run(command, env=variables, capture_output=True, text=True, check=False)


def without_names(library: Path) -> bytes:
    bare = library.with_suffix(".bare")
    without = [f"--remove-section={name}" for name in (".comment", ".note.gnu.build-id")]
    subprocess.run(["aarch64-linux-gnu-objcopy", *without, library, bare], check=True)
    return bare.read_bytes()


@pytest.mark.slow
@pytest.mark.network
@pytest.mark.torch
def test_what_is_crossed_is_byte_for_byte_what_that_systems_compiler_makes(tmp_path: Path) -> None:
    qemu = shutil.which("qemu-aarch64-static") or pytest.skip("apt-get install qemu-user-static")
    if shutil.which("aarch64-linux-gnu-g++-12") is None:
        pytest.skip("the native compiler is Debian's g++-12: apt-get install g++-12-aarch64-linux-gnu")
    tried = alone(TRY, QEMU=qemu)
    if tried.returncode != 0:
        pytest.skip(f"qemu cannot be registered in a namespace of its own: {tried.stderr.strip()[:200]}")
    kernel = tmp_path / "relu-tvm-ffi"
    shutil.copytree(ROOT / "examples" / kernel.name, kernel, ignore=shutil.ignore_patterns("build", "__pycache__"))
    cache = tmp_path / "cache"
    cache.mkdir()
    (default_cache() / "envs").mkdir(parents=True, exist_ok=True)
    (cache / "envs").symlink_to(default_cache() / "envs")
    own = {"KCI_COMPILER_CACHE": "off", "CXX_aarch64_linux_gnu": "/usr/bin/aarch64-linux-gnu-g++-12"}
    built = kci_process("build", kernel, "--variant", VARIANT, "--cache", cache, "--unique-id", "1a2b3c4", **own)
    assert built.code == 0, built.stderr
    (crossed,) = (cache / "work").glob(f"*/{VARIANT}")
    made = {path.relative_to(crossed) for path in crossed.rglob("*") if path.suffix in (".o", ".so", ".a")}
    # What is taken out of the static C++ library was compiled by whoever packaged it.
    compared = sorted(path for path in made if path.suffix == ".so" or path.name.endswith(".cpp.o"))
    assert len(compared) > 2
    native = tmp_path / "native"
    shutil.copytree(crossed, native, symlinks=True)
    for path in made:
        (native / path).unlink()
    ninja = tvm_ffi_environment(cache, "0.1", ARM).ninja
    listed = subprocess.run([ninja, "-C", crossed, "-t", "commands"], capture_output=True, text=True, check=True)
    commands = [line for line in listed.stdout.splitlines() if not line.startswith("ninja:")]
    # Debian's cross compiler has its libraries in another folder than the native one, with the same bytes.
    text = "\n".join([f"cd {shlex.quote(str(native))}", *commands, ""]).replace("/usr/lib/gcc-cross/", "/usr/lib/gcc/")
    text = text.replace("/usr/lib/gcc/aarch64-linux-gnu/12/../../../../aarch64-linux-gnu/bin/ar", "ar")
    script = tmp_path / "native.sh"
    script.write_text(text)
    how = msgspec.structs.replace(emulation_data().systems[ARM], packages=COMPILERS)
    root = emulation._root(how, default_cache(), quiet)
    there = {"ROOT_DIR": root, "SHARED": tmp_path, "HEADERS": default_cache(), "SCRIPT": script, "QEMU": qemu}
    there["LED_TO"] = (default_cache() / "envs").resolve()
    ran = alone(ENTER, **there)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert [path for path in compared if without_names(native / path) != without_names(crossed / path)] == []
