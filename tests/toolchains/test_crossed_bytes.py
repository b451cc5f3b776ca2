"""Is what is crossed what a machine of that system makes? The same commands, by the compilers of Debian for arm64.

The two compilers are one release of GCC, packaged twice: `.comment` names the package, and the build id is a hash that
covers it.

They run under qemu in a namespace of their own, where the kernel knows qemu (binfmt_misc, Linux 6.7 or newer).
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
from pathlib import Path

import msgspec
import pytest

from buildkit import copy_kernel, quiet
from cli.runner import kci_process
from conftest import ROOT
from kci.files.cache import default_cache
from kci.toolchains import emulation
from kci.toolchains.emulation import emulation_data
from kci.toolchains.environment import tvm_ffi_environment

ARM, X86 = "aarch64-linux", "x86_64-linux"
COMPILERS = ("dash", "g++-12", "g++", "g++-12-x86-64-linux-gnu")
ELSEWHERE = {
    # What is native there is another folder, with the same bytes.
    ARM: (
        ("/usr/lib/gcc-cross/", "/usr/lib/gcc/"),
        ("/usr/lib/gcc/aarch64-linux-gnu/12/../../../../aarch64-linux-gnu/bin/ar", "ar"),
    ),
    X86: (("/usr/lib/gcc/", "/usr/lib/gcc-cross/"), ("\nar ", "\nx86_64-linux-gnu-ar ")),
}
_MAGIC = r":arm:M::\x7fELF\x02\x01\x01\x00\x00\x00\x00\x00\x00\x00\x00\x00\x02\x00\xb7\x00"
_MASK = r":\xff\xff\xff\xff\xff\xff\xff\x00\xff\xff\xff\xff\xff\xff\xff\xff\xfe\xff\xff\xff:"
ENTER = f"""
set -e
known=$(mktemp -d)
mount -t binfmt_misc none "$known"
printf %s '{_MAGIC}{_MASK}'"$QEMU:F" > "$known/register"
mkdir -p "$ROOT_DIR/dev" "$ROOT_DIR/tmp"
mount --rbind /dev "$ROOT_DIR/dev"
for place in $PLACES; do
    mkdir -p "$ROOT_DIR$place"
    mount --bind "$place" "$ROOT_DIR$place"
done
exec chroot "$ROOT_DIR" /bin/sh -e "$SCRIPT"
"""
TRY = f"mount -t binfmt_misc none /mnt && printf %s '{_MAGIC}{_MASK}'\"$QEMU:F\" > /mnt/register"


def alone(script: str, **environment: str | Path) -> subprocess.CompletedProcess[str]:
    variables = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", **{name: str(value) for name, value in environment.items()}}
    command = ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c", script]
    return subprocess.run(command, env=variables, capture_output=True, text=True, check=False)


def without_names(prefix: str, library: Path) -> bytes:
    bare = library.with_suffix(".bare")
    without = [f"--remove-section={name}" for name in (".comment", ".note.gnu.build-id")]
    subprocess.run([f"{prefix}-objcopy", *without, library, bare], check=True)
    return bare.read_bytes()


@pytest.mark.slow
@pytest.mark.network
@pytest.mark.torch
@pytest.mark.parametrize("system", [ARM, X86])
@pytest.mark.parametrize("kernel", ["bare", *(["relu-tvm-ffi"] if os.environ.get("KCI_MANY") else [])])
def test_what_is_crossed_is_byte_for_byte_what_that_systems_compiler_makes(
    kernel: str, system: str, tmp_path: Path
) -> None:
    """From x86-64 to arm64, and from arm64 to x86-64: a root of arm64 has the compilers for both.

    Of `bare` the objects of the kernel and the library; of the other those of kci's own stand-ins too, which takes
    minutes: KCI_MANY=1 compiles it.
    """
    qemu = shutil.which("qemu-aarch64-static") or pytest.skip("apt-get install qemu-user-static")
    prefix = system.replace("-linux", "-linux-gnu")
    if not all(shutil.which(f"{name}-linux-gnu-g++-12") for name in ("aarch64", "x86_64")):
        pytest.skip("the compilers of that root are Debian's g++-12: apt-get install g++-12 g++-12-aarch64-linux-gnu")
    tried = alone(TRY, QEMU=qemu)
    if tried.returncode != 0:
        pytest.skip(f"qemu cannot be registered in a namespace of its own: {tried.stderr.strip()[:200]}")
    variant = f"tvm-ffi01-cpu-{system}" if "tvm-ffi" in kernel else f"torch-stable-abi211-cpu-{system}"
    sources, ignored = tmp_path / kernel, shutil.ignore_patterns("build", "__pycache__")
    if kernel == "bare":
        copy_kernel(kernel, tmp_path)
    else:
        shutil.copytree(ROOT / "examples" / kernel, sources, ignore=ignored)
    cache = tmp_path / "cache"
    cache.mkdir()
    (default_cache() / "envs").mkdir(parents=True, exist_ok=True)
    (cache / "envs").symlink_to(default_cache() / "envs")
    own = dict.fromkeys(("CXX", f"CXX_{prefix.replace('-', '_')}"), f"/usr/bin/{prefix}-g++-12")
    words = ("--variant", variant, "--cache", cache, "--unique-id", "1a2b3c4")
    built = kci_process("build", sources, *words, KCI_COMPILER_CACHE="off", **own)
    assert built.code == 0, built.stderr
    (here,) = (cache / "work").glob(f"*/{variant}")
    tools = tvm_ffi_environment(cache, "0.1", ARM)
    tools.ensure(tools.python, quiet)  # whatever other tests have left in the cache
    listed = subprocess.run([tools.ninja, "-C", here, "-t", "commands"], capture_output=True, text=True, check=True)
    commands = [line for line in listed.stdout.splitlines() if not line.startswith("ninja:")]
    made = {path.relative_to(here) for path in here.rglob("*") if path.suffix in (".o", ".so", ".a")}
    if kernel == "bare":
        commands = [line for line in commands if " obj/" in line]
        made = {path for path in made if path.parts[0] == "obj" or len(path.parts) == 1}
    # What is taken out of the static C++ library was compiled by whoever packaged it.
    compared = sorted(path for path in made if path.suffix == ".so" or path.name.endswith(".cpp.o"))
    assert len(compared) > 2
    there = tmp_path / "there"
    shutil.copytree(here, there, symlinks=True)
    for path in made:
        (there / path).unlink()
    text = "\n".join([f"cd {shlex.quote(str(there))}", *commands, ""])
    for old, new in ELSEWHERE[system]:
        text = text.replace(old, new)
    script = tmp_path / "there.sh"
    script.write_text(text)
    how = msgspec.structs.replace(emulation_data().systems[ARM], packages=COMPILERS)
    root = emulation._root(how, default_cache(), quiet)
    links = {path.resolve() for path in here.iterdir() if path.is_symlink()}
    places = {tmp_path, default_cache(), (default_cache() / "envs").resolve(), *links}
    ran = alone(ENTER, ROOT_DIR=root, PLACES=" ".join(map(str, sorted(places))), SCRIPT=script, QEMU=qemu)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    found = [[without_names(prefix, place / path) for path in compared] for place in (here, there)]
    assert [path for path, *both in zip(compared, *found, strict=True) if both[0] != both[1]] == []
