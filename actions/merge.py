"""kci/build/merge: artifacts into one tree, held against the plan."""

from __future__ import annotations

import shutil
import tarfile
from collections.abc import Mapping
from pathlib import Path

import kci
from common import (
    add_summary,
    fail,
    flag_input,
    group,
    lines_input,
    run_action,
    runner_temp,
    set_output,
    table_row,
    text_input,
    unpacked,
)
from kci.cli._findings import show_findings
from kci.cli._output import print_diagnostics, print_error
from kci.run.build_leg import ci_run
from kci.tree.manifest import FILE_NAME, read_manifest
from kci.tree.planned import Planned
from kci.verify.elf import symbol_names


def main() -> None:
    """Merge and verify, then set the outputs."""
    artifacts, into = lines_input("artifacts"), Path(text_input("into", "build"))
    if not artifacts:
        fail("the input `artifacts` is missing", 2)
    allow_partial = flag_input("allow-partial")
    plan = plan_file(text_input("plan"))
    planned = kci.read_plan(plan) if plan else None
    if published := text_input("published"):
        lay_out(Path(published), into)
    make_room(into, planned)
    for artifact in artifacts:
        if plan and not Path(artifact).exists():
            Path(artifact).mkdir(parents=True)  # nothing was built at all, so nothing was downloaded
    warnings: list[kci.Diagnostic] = []
    try:
        with group("Merge"):
            merged = kci.merge_artifacts(
                [Path(artifact) for artifact in artifacts],
                into,
                planned,
                allow_partial=allow_partial,
                run=ci_run(),
                log=print,
                report=warnings.append,
                symbols_of=symbol_names,
            )
            print_diagnostics(warnings)
    except kci.KciError as error:
        print_error(error)
        set_output("complete", "false")
        code = error.exit_code
        fail(f"the artifacts were not merged (exit code {code})", code, "missing variants: see their build jobs")
    manifests = {place(into, manifest, merged): manifest for manifest in merged}
    if manifests:
        with group("Verify"):
            verified = show_findings(kci.verify_path(into), "text", what=str(into))
        if verified:
            set_output("complete", "false")
            fail(f"the merged tree does not meet the requirements (exit code {verified})", verified)
    tar = runner_temp() / "kci-tree.tar"
    pack(into, tar)
    set_output("tree", str(into))
    set_output("complete", "true" if merged and all(manifest.complete for manifest in merged) else "false")
    set_output("manifest", "\n".join(str(path) for path in manifests))
    set_output("tar", str(tar))
    report(manifests)


def place(into: Path, manifest: kci.Manifest, merged: list[kci.Manifest]) -> Path:
    """Where a manifest stands: at the top of the one tree, or of its kernel's."""
    return into / FILE_NAME if len(merged) == 1 else into / manifest.kernel / FILE_NAME


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


def lay_out(published: Path, into: Path) -> None:
    """Begin with the published tree, unless there is one already."""
    if not find_manifests(into):
        shutil.copytree(unpacked(published), into, symlinks=True, dirs_exist_ok=True)


def make_room(into: Path, planned: Planned | None) -> None:
    """Have each earlier tree where the new one goes, and none of another version, which cannot be carried over."""
    kernels = planned.kernels if planned is not None else {}
    for path, manifest in find_manifests(into).items():
        kernel = manifest.kernel
        if kernel in kernels and manifest.version != kernels[kernel].version:
            shutil.rmtree(path.parent)
        elif path.parent == into and set(kernels) - {kernel}:
            aside = into.with_name(f"{into.name}-aside")
            into.rename(aside)
            into.mkdir()
            aside.rename(into / kernel)


def find_manifests(into: Path) -> dict[Path, kci.Manifest]:
    """The manifests of one tree, or of the trees of several kernels."""
    single = into / FILE_NAME
    paths = [single] if single.is_file() else sorted(into.glob(f"*/{FILE_NAME}"))
    found = {path: read_manifest(path.parent) for path in paths}
    return {path: manifest for path, manifest in found.items() if manifest is not None}


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


def report(manifests: Mapping[Path, kci.Manifest]) -> None:
    """Show in log and summary what the trees have and lack."""
    rows, lacking = [], 0
    for manifest in manifests.values():
        rows += [table_row(manifest.kernel, name, "missing", "") for name in manifest.missing]
        rows += [table_row(manifest.kernel, item.variant, "present", item.digest) for item in manifest.present]
        lacking += len(manifest.missing)
    print(f"{len(rows) - lacking} variants present, {lacking} missing")
    if lacking:
        print(f"::warning::{lacking} planned variants are missing", flush=True)
    add_summary(["### The tree", "", "| kernel | variant | state | digest |", "|---|---|---|---|"], rows)


if __name__ == "__main__":
    run_action(main)
