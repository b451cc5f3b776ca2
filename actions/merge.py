"""kci/build/merge: artifacts into one tree, held against the plan."""

from __future__ import annotations

import json
import shutil
import subprocess
import tarfile
from pathlib import Path
from typing import Any

from common import (
    add_summary,
    fail,
    flag_input,
    group,
    kci_command,
    lines_input,
    runner_temp,
    set_output,
    table_row,
    text_input,
    unpacked,
)

MANIFEST = "kci-manifest.json"


def main() -> None:
    """Merge and verify, then set the outputs."""
    artifacts, into = lines_input("artifacts"), Path(text_input("into", "build"))
    if not artifacts:
        fail("the input `artifacts` is missing", 2)
    allow_partial = flag_input("allow-partial")
    plan = plan_file(text_input("plan"))
    if published := text_input("published"):
        lay_out(Path(published), into)
    make_room(into, planned_versions(plan))
    arguments = [f"--into={into}", "--json"]
    arguments += [f"--plan={plan}"] if plan else []
    arguments += ["--allow-partial"] if allow_partial else []
    for artifact in artifacts:
        if plan and not Path(artifact).exists():
            Path(artifact).mkdir(parents=True)  # nothing was built at all, so nothing was downloaded
    with group("Merge"):
        code = subprocess.run(kci_command("merge", *arguments, "--", *artifacts), check=False).returncode
    if code:
        set_output("complete", "false")
        fail(f"the artifacts were not merged (exit code {code})", code, "missing variants: see their build jobs")
    manifests = find_manifests(into)
    if manifests:
        with group("Verify"):
            verified = subprocess.run(kci_command("verify", "--", str(into)), check=False).returncode
        if verified:
            set_output("complete", "false")
            fail(f"the merged tree does not meet the requirements (exit code {verified})", verified)
    complete = all(manifest.get("complete", not manifest.get("missing")) for manifest in manifests.values())
    tar = runner_temp() / "kci-tree.tar"
    pack(into, tar)
    set_output("tree", str(into))
    set_output("complete", "true" if complete and manifests else "false")
    set_output("manifest", "\n".join(str(path) for path in manifests))
    set_output("tar", str(tar))
    report(manifests)


def plan_file(plan: str) -> Path | None:
    """The plan as a file: the input is a file's name, or JSON, which a command line may be too short for."""
    if not plan:
        return None
    if not plan.startswith("{"):
        if not Path(plan).is_file():
            fail(f"the input `plan` is neither JSON nor a file: {plan[:200]!r}", 2)
        return Path(plan)
    path = runner_temp() / "kci-plan.json"
    path.write_text(plan, encoding="utf-8")
    return path


def planned_versions(plan: Path | None) -> dict[str, Any]:
    """The version of each planned kernel by its name."""
    if plan is None:
        return {}
    kernels = json.loads(plan.read_text(encoding="utf-8")).get("kernels", [])
    return {str(kernel.get("name")): kernel.get("version") for kernel in kernels}


def lay_out(published: Path, into: Path) -> None:
    """Begin with the published tree, unless there is one already."""
    if not find_manifests(into):
        shutil.copytree(unpacked(published), into, symlinks=True, dirs_exist_ok=True)


def make_room(into: Path, planned: dict[str, Any]) -> None:
    """Have each earlier tree where the new one goes, and none of another version, which cannot be carried over."""
    for path, manifest in find_manifests(into).items():
        kernel = str(manifest.get("kernel"))
        if kernel in planned and manifest.get("version") != planned[kernel]:
            shutil.rmtree(path.parent)
        elif path.parent == into and set(planned) - {kernel}:
            aside = into.with_name(f"{into.name}-aside")
            into.rename(aside)
            into.mkdir()
            aside.rename(into / kernel)


def find_manifests(into: Path) -> dict[Path, dict[str, Any]]:
    """The manifests of one tree, or of the trees of several kernels."""
    single = into / MANIFEST
    paths = [single] if single.is_file() else sorted(into.glob(f"*/{MANIFEST}"))
    return {path: json.loads(path.read_text(encoding="utf-8")) for path in paths}


def pack(into: Path, tar: Path) -> None:
    """The tree as a tar that depends on its content only: sorted, without times and owners."""
    with tarfile.open(tar, "w", format=tarfile.PAX_FORMAT) as archive:
        for path in sorted(into.rglob("*")):
            info = archive.gettarinfo(path, path.relative_to(into).as_posix())
            info.mtime, info.uid, info.gid, info.uname, info.gname = 0, 0, 0, "", ""
            if info.isfile():
                info.mode = 0o755 if info.mode & 0o100 else 0o644
                with path.open("rb") as stream:
                    archive.addfile(info, stream)
            elif info.isdir():
                info.mode = 0o755
                archive.addfile(info)


def report(manifests: dict[Path, dict[str, Any]]) -> None:
    """Show in log and summary what the trees have and lack."""
    rows, lacking = [], 0
    for manifest in manifests.values():
        kernel = manifest.get("kernel", "")
        rows += [table_row(kernel, name, "missing", "") for name in manifest.get("missing", [])]
        rows += [
            table_row(kernel, item["variant"], "present", item.get("digest", ""))
            for item in manifest.get("present", [])
        ]
        lacking += len(manifest.get("missing", []))
    print(f"{len(rows) - lacking} variants present, {lacking} missing")
    if lacking:
        print(f"::warning::{lacking} planned variants are missing", flush=True)
    add_summary(["### The tree", "", "| kernel | variant | state | digest |", "|---|---|---|---|"], rows)


if __name__ == "__main__":
    main()
