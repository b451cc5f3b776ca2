"""Write the table of torch's versioned shim functions, which `kci verify` reads.

    python bin/update_abi_data.py [TORCH_INCLUDE_DIR]

Needs the headers of a torch wheel; the installed torch is taken if no directory is given.
"""

import datetime
import importlib.util
import re
import sys
from collections import defaultdict
from pathlib import Path

DATA = Path(__file__).resolve().parent.parent / "src" / "kci" / "verify" / "data"
GUARD = re.compile(r"#\s*if\s+TORCH_FEATURE_VERSION\s*>=\s*TORCH_VERSION_(\d+)_(\d+)_0")
FUNCTION = re.compile(r"\b((?:aoti_)?torch_\w+)\s*\(")


def write(name: str, about: str, source: str, by_version: dict[tuple[int, int], set[str]]) -> None:
    """Write one table: version to sorted names."""
    lines = [f"# {line}" for line in about.splitlines()]
    lines += [
        f"as-of = {datetime.datetime.now(tz=datetime.UTC).date()}",
        f'source = "{source}"',
        "",
        "[added]",
    ]
    for version in sorted(by_version):
        lines.append(f'"{version[0]}.{version[1]}" = [')
        lines += [f'    "{name}",' for name in sorted(by_version[version])]
        lines.append("]")
    (DATA / name).write_text("\n".join(lines) + "\n", encoding="utf-8")


def torch_shims(include: Path) -> None:
    """Torch's C shim functions that stand behind a version guard in its headers."""
    found: dict[tuple[int, int], set[str]] = defaultdict(set)
    for header in sorted((include / "torch" / "csrc").rglob("*.h")):
        if "shim" not in header.name or "deprecated" in header.name:
            continue
        guards: list[tuple[int, int] | None] = []
        pending = False
        for line in header.read_text(encoding="utf-8").splitlines():
            text = line.split("//")[0]
            if re.match(r"\s*#\s*if", text):
                guard = GUARD.match(text.strip())
                guards.append((int(guard[1]), int(guard[2])) if guard else None)
            elif re.match(r"\s*#\s*endif", text):
                guards.pop()
            pending = pending or "AOTI_TORCH_EXPORT" in text
            versions = [guard for guard in guards if guard]
            if pending and (function := FUNCTION.search(text)):
                pending = False
                if versions:
                    found[max(versions)].add(function[1])
            elif text.rstrip().endswith(";"):
                pending = False
    text = (include / "torch" / "headeronly" / "version.h").read_text(encoding="utf-8")
    parts = [re.search(rf"#define TORCH_VERSION_{part} (\d+)", text) for part in ("MAJOR", "MINOR")]
    version = ".".join(part[1] for part in parts)
    about = (
        "Functions of torch's C shim by the version that added them. Functions that are not "
        "listed are older "
        "than 2.10.\n"
        "Written by bin/update_abi_data.py."
    )
    write(
        "torch-shims.toml",
        about,
        f"the TORCH_FEATURE_VERSION guards in the headers of torch {version}",
        found,
    )


def main() -> None:
    """Write the table."""
    if len(sys.argv) > 1:
        include = Path(sys.argv[1])
    else:
        include = Path(importlib.util.find_spec("torch").origin).parent / "include"
    torch_shims(include)


if __name__ == "__main__":
    main()
