"""Value types of build.toml, which accept the same values as the reference's strict reader."""

from __future__ import annotations

import enum
import re

KERNEL_NAME_PATTERN = r"^[a-z][-a-z0-9]*[a-z0-9]$"
"""At least two characters; no underscore, capital, or dash at the end."""

NAME_PATTERN = KERNEL_NAME_PATTERN.removesuffix("$") + r"\Z"
"""`$` would allow a newline at the end."""


class Backend(enum.StrEnum):
    """A backend that a kernel can be built for."""

    CANN = "cann"
    CPU = "cpu"
    CUDA = "cuda"
    METAL = "metal"
    NEURON = "neuron"
    ROCM = "rocm"
    TPU = "tpu"
    XPU = "xpu"


class System(enum.StrEnum):
    """A processor and an operating system, as in variant names."""

    AARCH64_DARWIN = "aarch64-darwin"
    AARCH64_LINUX = "aarch64-linux"
    AARCH64_WINDOWS = "aarch64-windows"
    X86_64_LINUX = "x86_64-linux"
    X86_64_WINDOWS = "x86_64-windows"


RunnerKind = enum.StrEnum("RunnerKind", ["any", "noarch", *map(str, Backend)])  # type: ignore[misc]
RunnerKind.__doc__ = "The variants that a runner is for: a backend, every backend, or Python only."

SYSTEMS = tuple(str(system) for system in System)


class Tier(enum.StrEnum):
    """How much to build."""

    PR = "pr"
    """One variant per backend and system: newest torch, oldest compute version."""
    RELEASE = "release"
    """All that users load."""
    COMPAT = "compat"
    """Rows outside the supported torch range."""
    ALL = "all"
    """Release and compat, and the rows that are not bundled."""


class Forks(enum.StrEnum):
    """The treatment of legs that need a self-hosted machine, in a pull request from a fork."""

    HOSTED = "hosted"
    """Not built; the run fails and names them."""
    DISPATCH = "dispatch"
    """Built when a maintainer dispatches the reviewed commit; a commit status waits for it."""


class StaleVariants(enum.StrEnum):
    """The treatment of published variants that are of other sources and that a release
    leaves out.
    """

    ASK = "ask"
    """Nothing is published until a maintainer decides."""
    ALLOW = "allow"
    """They stay beside the new ones."""
    REMOVE = "remove"


class PublishOn(enum.StrEnum):
    """The event that publishes."""

    TAG = "tag"
    PUSH = "push"
    """Each push to the default branch."""


class Grouping(enum.StrEnum):
    """The variants that one leg builds."""

    VARIANT = "variant"
    """One variant: the most parallel jobs."""
    IMAGE = "image"
    """Variants of a kernel with the same image, which is pulled once."""
    BACKEND = "backend"
    """Variants of a kernel with the same backend and system: the fewest jobs."""


class Depend(enum.StrEnum):
    """A C++ dependency that a component can name in `depends`."""

    TORCH = "torch"
    METAL_CPP = "metal-cpp"
    SYCL_TLA = "sycl_tla"
    CUTLASS_2_10 = "cutlass_2_10"
    CUTLASS_3_5 = "cutlass_3_5"
    CUTLASS_3_6 = "cutlass_3_6"
    CUTLASS_3_8 = "cutlass_3_8"
    CUTLASS_3_9 = "cutlass_3_9"
    CUTLASS_4_0 = "cutlass_4_0"
    CUTLASS_4_4 = "cutlass_4_4"
    CUTLASS_4_5 = "cutlass_4_5"


class Version(tuple[int, ...]):
    """A dotted version without trailing zeros: 13.0 equals 13. `text` keeps the spelling."""

    text: str

    @classmethod
    def parse(cls, text: object) -> Version:
        """Read a version. Raises ValueError."""
        if not isinstance(text, str):
            raise ValueError("expected a string")
        stripped = text.strip(_WHITE_SPACE)
        pieces = stripped.split(".")
        if not all(piece.isascii() and piece.removeprefix("+").isdigit() for piece in pieces):
            raise ValueError(f"expected a version such as '2.12', got {quoted(shorten(text))}")
        digits = [piece.lstrip("+0") or "0" for piece in pieces]
        if any(len(part) > _DIGITS or int(part) > _LARGEST for part in digits):
            raise ValueError(f"a version part is too large: {quoted(shorten(text))}")
        while digits and digits[-1] == "0":
            digits.pop()
        version = cls(map(int, digits))
        version.text = stripped
        return version

    def __bool__(self) -> bool:
        """True even for 0, the empty tuple."""
        return True

    def __str__(self) -> str:
        return self.text

    def __repr__(self) -> str:
        return f"Version({self.text!r})"

    @property
    def minor_text(self) -> str:
        """Major and minor, such as `13.0`."""
        padded = (*self, 0, 0)
        return f"{padded[0]}.{padded[1]}"


def text_of(version: Version | None) -> str:
    """The text of a version; empty without one."""
    return version.text if version is not None else ""


_LARGEST = 2**64 - 1
_DIGITS = len(str(_LARGEST))
_WHITE_SPACE = "".join(
    map(
        chr, [*range(9, 14), 32, 0x85, 0xA0, 0x1680, *range(0x2000, 0x200B), 0x2028, 0x2029, 0x202F]
    )
)
_WHITE_SPACE += "\u205f\u3000"
"""Unicode white space. `str.strip` also strips U+001C to U+001F, which the reference refuses."""


def shorten(text: str) -> str:
    """Cut a text to 60 characters."""
    return text if len(text) <= 60 else text[:57] + "..."


def quoted(text: str) -> str:
    """Quote a text as TOML does; Python's escapes differ."""
    if text.isprintable() and "'" not in text:
        return f"'{text}'"
    return toml_string(text)


def toml_string(text: str) -> str:
    """Format a TOML string in double quotes."""
    escaped = (
        f"\\{char}" if char in '"\\' else char if char.isprintable() else f"\\U{ord(char):08x}"
        for char in text
    )
    return f'"{"".join(escaped)}"'


class StableAbi(dict[str, Version]):
    """`torch.stable-abi`: versions by backend, or a single one by the empty text
    (docs/format.md#stable-abi).
    """

    @classmethod
    def parse(cls, value: object) -> StableAbi:
        """Accept a version or a table of backend to version. Raises ValueError."""
        if isinstance(value, str):
            return cls({"": Version.parse(value)})
        if not isinstance(value, dict):
            raise ValueError("expected a version such as '2.11', or a table of backend to version")
        return cls({Backend(key): Version.parse(text) for key, text in value.items()})

    def version_for(self, backend: str) -> Version | None:
        """The version for a backend; None for the full ABI."""
        return self.get("") or self.get(backend)


class KernelName(str):
    """A valid kernel name."""

    __slots__ = ()

    @classmethod
    def parse(cls, name: object) -> KernelName:
        """Validate a kernel name. Raises ValueError."""
        if not isinstance(name, str):
            raise ValueError("expected a string")
        if not re.fullmatch(KERNEL_NAME_PATTERN[1:-1], name):
            raise ValueError(
                f"{quoted(shorten(name))} is not a kernel name: lower-case letters, digits and "
                "dashes, "
                "starting with a letter, at least two characters, not ending with a dash"
            )
        return cls(name)


PLACEHOLDER_OWNER = "your-name"
"""The owner in the repository id of a new kernel."""


def python_name(kernel_name: str) -> str:
    """The kernel's Python package name."""
    return kernel_name.replace("-", "_")


def suggest_kernel_name(text: str) -> str:
    """Suggest a kernel name for a text; empty if nothing is close."""
    parted = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "-", text[:200])
    dashed = re.sub(r"[^a-z0-9-]+", "-", parted.lower()).strip("-").lstrip("0123456789-")
    return dashed if re.fullmatch(KERNEL_NAME_PATTERN[1:-1], dashed) else ""


# Git branch names that need no quoting.
_BRANCH = re.compile(
    r"(?!.*(?:\.\.|//|@\{|\.lock$|/$|\.$))[A-Za-z0-9_][A-Za-z0-9_./-]{0,199}", re.ASCII
)


def is_branch(name: str) -> bool:
    """True for a branch name; `{version}` stands for the kernel's version."""
    return bool(_BRANCH.fullmatch(name.replace("{version}", "1")))


CXX_ENDINGS = (".cpp", ".cc", ".cxx", ".c++")
C_ENDINGS = (".c",)
HEADER_ENDINGS = (
    ".h",
    ".hh",
    ".hpp",
    ".hxx",
    ".h++",
    ".cuh",
    ".inl",
    ".inc",
    ".ipp",
    ".tpp",
    ".def",
)
