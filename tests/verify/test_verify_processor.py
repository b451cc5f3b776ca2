"""Code for newer processors than every user has, each time in a real library that a compiler made."""

from __future__ import annotations

import platform
import shutil
import struct
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from kci.diagnostics import Diagnostic
from kci.tree.elf import _cpu_level
from kci.verify import verify
from kci.verify.processor_rules import disassemble, feature_of
from lying_elf import Lie
from variants import CPU, make_variant

pytestmark = pytest.mark.skipif(
    shutil.which("g++") is None or platform.machine() != "x86_64", reason="needs g++ for x86-64"
)

ID = "_gated_norm_cpu_1a2b3c4"
INIT = f'extern "C" void* PyInit_{ID}() {{ return 0; }}\n'
SCALE = "void scale(float* x, float y, int n) { for (int i = 0; i < n; i++) x[i] = x[i] * y + y; }\n"
AVX2 = '__attribute__((target("avx2"))) '
ASKING = 'void best(float* x, int n) { if (__builtin_cpu_supports("avx2")) scale(x, 2, n); }\n'

Compile = Callable[..., Path]


@pytest.fixture(scope="session")
def library(tmp_path_factory: pytest.TempPathFactory) -> Compile:
    """Compile C++ with optimization, as kernels are."""

    def run(source: str, *flags: str) -> Path:
        root = tmp_path_factory.mktemp("processor")
        (root / "a.cpp").write_text(INIT + source)
        command = ["g++", "-shared", "-fPIC", "-O3", "-nostdlib", *flags, "-o", str(root / "a.so"), str(root / "a.cpp")]
        subprocess.run([*command, "-lgcc"], check=True)
        return root / "a.so"

    return run


def found(root: Path, path: Path, python: str = "", variant: str = CPU) -> list[Diagnostic]:
    """What verification says about the instructions of a variant with this library."""
    files: dict[str, str | bytes] = {"__init__.py": python, f"{ID}.abi3.so": path.read_bytes()}
    return verify(make_variant(root, variant, files=files), select=["KCI740", "KCI750", "KCI767", "KCI768", "KCI769"])


@pytest.mark.rule("KCI767", triggers=True)
@pytest.mark.parametrize("flag", ["-march=x86-64-v3", "-march=x86-64-v4", "-mavx", "-mfma"])
@pytest.mark.parametrize("strip", [(), ("-s",)])
def test_code_for_newer_processors_that_nothing_asks_for(
    tmp_path: Path, library: Compile, flag: str, strip: tuple[str, ...]
) -> None:
    (item,) = found(tmp_path, library(SCALE, flag, *strip))
    assert item.rule == "KCI767"
    assert item.message.startswith("_Z5scalePffi has `v")
    assert item.message.endswith("and nothing asks which processor it runs on")


@pytest.mark.rule("KCI767", "KCI768", "KCI769", triggers=False)
@pytest.mark.parametrize("flag", ["-march=x86-64", "-march=x86-64-v2", "-march=nehalem", "-mtune=native"])
def test_code_for_all_processors(tmp_path: Path, library: Compile, flag: str) -> None:
    source = SCALE + "int count(unsigned long x) { return __builtin_ctzl(x) + __builtin_clzl(x); }"
    assert found(tmp_path, library(source, flag)) == []


@pytest.mark.rule("KCI768", triggers=True)
@pytest.mark.parametrize(
    ("source", "how"),
    [
        (AVX2 + SCALE + ASKING, "cpuid in "),
        ('__attribute__((target_clones("avx2", "default"))) ' + SCALE, "(cpuid in "),
        (f'extern "C" {{ {AVX2} {SCALE} void* choose() {{ return (void*) scale; }}'
         ' void fast() __attribute__((ifunc("choose"))); }', "fast is chosen when it is loaded"),
        ("namespace at { int get_cpu_capability(); }\nint f() { return at::get_cpu_capability(); }" + AVX2 + SCALE,
         "get_cpu_capability"),
        ('extern "C" bool cpuinfo_has_avx2(); bool f() { return cpuinfo_has_avx2(); }' + AVX2 + SCALE, "cpuinfo_has"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("strip", [(), ("-s",)])
def test_code_for_newer_processors_behind_a_question(
    tmp_path: Path, library: Compile, source: str, how: str, strip: tuple[str, ...]
) -> None:
    (item,) = found(tmp_path, library(source, *strip))
    assert (item.rule, item.severity) == ("KCI768", "info")
    assert how in item.message
    assert item.message.endswith("is not shown")


@pytest.mark.rule("KCI768", triggers=True)
def test_the_question_may_be_asked_in_python(tmp_path: Path, library: Compile) -> None:
    path = library(SCALE, "-mavx2")
    (item,) = found(tmp_path, path, "import torch\nFAST = torch.backends.cpu.get_cpu_capability() == 'AVX2'\n")
    assert (item.rule, "it asks (__init__.py)" in item.message) == ("KCI768", True)


@pytest.mark.rule("KCI767", triggers=True)
@pytest.mark.parametrize(
    ("source", "where"),
    [
        # With -march=native everything is compiled so, what runs at the import too.
        ("float table[64]; float part;\n__attribute__((constructor)) " + AVX2
         + "void fill() { for (int i = 0; i < 64; i++) table[i] += part; }\n", "_Z4fillv"),
        (AVX2 + "int supported(float* x, int n) { for (int i = 0; i < n; i++) x[i] *= 2; int a = 0, b, c, d;"
         ' __asm__ volatile("cpuid" : "+a"(a), "=b"(b), "=c"(c), "=d"(d)); return a; }\n', "_Z9supportedPfi"),
    ],
)  # fmt: skip
def test_what_runs_before_any_question(tmp_path: Path, library: Compile, source: str, where: str) -> None:
    (item,) = found(tmp_path, library(source + AVX2 + SCALE + ASKING))
    assert item.rule == "KCI767"
    assert item.message.startswith(f"{where} has `v")
    assert item.message.endswith("which runs before anything can ask for the processor")


@pytest.mark.rule("KCI769", triggers=True)
@pytest.mark.parametrize("scope", ["std", "c10"])
def test_an_inline_function_that_all_sources_share(tmp_path: Path, library: Compile, scope: str) -> None:
    source = f"namespace {scope} {{ __attribute__((weak)) {AVX2}{SCALE} }}\n{AVX2}{SCALE}{ASKING}"
    items = found(tmp_path, library(source))
    assert sorted(item.rule for item in items) == ["KCI768", "KCI769"]
    assert all("5scale" in item.message for item in items)


@pytest.mark.rule("KCI767", triggers=True)
def test_an_instruction_that_the_disassembler_does_not_know(tmp_path: Path, library: Compile) -> None:
    """AVX512-FP16, which is newer than capstone 5."""
    source = 'void half() { __asm__ volatile(".byte 0x62, 0xf5, 0x74, 0x48, 0x58, 0xc2"); }'
    (item,) = found(tmp_path, library(source))
    assert item.message.startswith("_Z4halfv has `bytes 62 f5 74 48 58 c2` (AVX-512)")


@pytest.mark.rule("KCI750", triggers=True)
def test_the_instructions_of_other_processors_are_not_looked_at(tmp_path: Path, library: Compile) -> None:
    (tmp_path / "a.so").write_bytes(Lie(library(SCALE).read_bytes()).put(18, "H", 183).data)
    (item,) = found(tmp_path, tmp_path / "a.so", variant=CPU.replace("x86_64", "aarch64"))
    assert item.message == "the instructions of a library for aarch64 are not checked"


@pytest.mark.parametrize(
    ("mnemonic", "feature"),
    [
        ("vaddps", "AVX"), ("vzeroupper", "AVX"), ("kmovw", "AVX-512"), ("mulx", "BMI"), ("lzcnt", "BMI"),
        ("aesenc", "AES"), ("movbe", "MOVBE"), ("pfadd", "3DNow"), ("verr", ""), ("popcnt", ""), ("tzcnt", ""),
        ("pshufb", ""), ("crc32", ""), ("cmpxchg16b", ""), ("endbr64", ""), ("prefetchw", ""), ("movntdqa", ""),
    ],
)  # fmt: skip
def test_which_instructions_are_beyond(mnemonic: str, feature: str) -> None:
    assert feature_of(mnemonic) == feature


def test_objdump_sees_the_same_functions(library: Compile) -> None:
    objdump = shutil.which("objdump")
    if objdump is None:
        pytest.skip("needs objdump")
    source = "".join(f"namespace n{n} {{ {AVX2 if n % 2 else ''}{SCALE} }}" for n in range(8))
    path = library(source)
    text = subprocess.run([objdump, "-d", "--no-show-raw-insn", str(path)], check=True, capture_output=True, text=True)
    theirs, name = set(), ""
    for line in text.stdout.splitlines():
        if line.endswith(">:"):
            name = line.split("<")[1][:-2]
        elif line.partition("\t")[2].startswith("v"):
            theirs.add(name)
    assert {item.name for item in disassemble(path).beyond} == theirs
    assert len(theirs) == 4


def test_every_property_of_a_note_is_read_whatever_stands_before_it() -> None:
    """The size of the stack is one of eight bytes; all begin at multiples of eight."""
    stack = struct.pack("<IIQ", 1, 8, 4096)
    level = struct.pack("<IIII", 0xC0008002, 4, 0b0100, 0)
    for properties, highest in ((level, 3), (stack + level, 3), (stack, 1), (level + stack, 3)):
        note = struct.pack("<III", 4, len(properties), 5) + b"GNU\0" + properties
        assert _cpu_level(note) == highest
        assert _cpu_level(struct.pack("<III", 4, 16, 5) + b"GNU\0" + stack + note) == highest
