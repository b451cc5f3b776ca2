"""kci/build/merge: merges artifacts into one tree and checks it against the plan."""

from __future__ import annotations

import shutil
import tarfile
from collections.abc import Mapping, Sequence
from pathlib import Path

import kci
from kci.actions.common import (
    add_summary,
    add_tables,
    fail,
    fetched_tree,
    flag_input,
    group,
    json_input,
    lines_input,
    runner_temp,
    set_output,
    text_input,
)
from kci.cli._answers import count_findings, findings_markdown, print_suppressed, show_findings, tree_table
from kci.cli._output import print_diagnostics, print_error
from kci.config.discovery import SuppressedFinding
from kci.run.records import PLAN_FILE, RECORD_FILE, ci_run, kernel_record, merge_error, verify_merged, write_record
from kci.tree.manifest import FILE_NAME, read_manifest
from kci.utils.suggest import count


class Merge:
    """The inputs of the action."""

    def __init__(self) -> None:
        self.into = Path(text_input("into", "build"))
        self.kernel = text_input("kernel") or None
        self.allow_partial = flag_input("allow-partial")
        flag_input("upload", default="false")
        self.artifacts = [Path(artifact) for artifact in lines_input("artifacts")]
        if not self.artifacts:
            fail("the input `artifacts` is missing", 2)
        self.plan = plan_file(json_input("plan"))
        self.planned: kci.Plan | None = None

    def run(self) -> list[kci.Manifest]:
        """Merge the artifacts; KciError for missing variants or a conflict."""
        self.planned = planned = kci.read_plan(self.plan) if self.plan else None
        if published := text_input("published"):
            tree = fetched_tree(Path(published), "that the plan builds upon", text_input("published-digest"))
            if not find_manifests(self.into):
                shutil.copytree(tree, self.into, symlinks=True, dirs_exist_ok=True)
        make_room(self.into, planned)
        for artifact in self.artifacts:
            if (self.plan or self.kernel) and not artifact.exists():
                artifact.mkdir(parents=True)  # nothing was built, so nothing was downloaded
        warnings: list[kci.Diagnostic] = []
        merged = kci.merge_artifacts(
            self.artifacts,
            self.into,
            planned,
            allow_partial=self.allow_partial,
            kernel=self.kernel,
            run=ci_run(),
            log=print,
            report=warnings.append,
        )
        print_diagnostics(warnings)
        return merged

    def record(self, manifest: kci.Manifest | None, error: str) -> None:
        if self.kernel is None:
            return
        record = kernel_record(self.kernel, self.artifacts, self.into, manifest, error)
        place = runner_temp() / "kci-record" / RECORD_FILE
        write_record(place, record)
        set_output("record", str(place))
        set_output("record-name", f"run-record.{self.kernel}.{record.attempt}")


def main() -> None:
    """Merge and verify, then set the outputs."""
    merge = Merge()
    try:
        with group("Merge"):
            merged = merge.run()
    except kci.KciError as error:
        print_error(error, annotate=False)  # the gate repeats it with the leg's reason
        merge.record(None, merge_error(error))
        set_output("complete", "false")
        code = error.exit_code
        fail(f"the artifacts were not merged (exit code {code})", code, "missing variants: see their build jobs")
    manifests = {place(merge, manifest, merged): manifest for manifest in merged}
    only = merged[0] if len(merged) == 1 else None
    verified = 0
    if manifests:
        with group("Verify"):
            verified = verify(merge, manifests)
    if verified:
        message = f"the merged tree does not meet the requirements (exit code {verified})"
        merge.record(only, message)
        set_output("complete", "false")
        fail(message, verified)
    merge.record(only, "")
    tar = runner_temp() / "kci-tree.tar"
    pack(merge.into, tar)
    set_output("tree", str(merge.into))
    set_output("complete", "true" if merged and all(manifest.complete for manifest in merged) else "false")
    set_output("manifest", "\n".join(str(path) for path in manifests))
    set_output("tar", str(tar))
    set_output("digest", only.digest if only else "")
    set_output("tree-name", f"tree.{merge.kernel or 'all'}.{ci_run().attempt or 1}")
    report(merged)


def verify(merge: Merge, manifests: Mapping[Path, kci.Manifest]) -> int:
    """Verify the merged trees; returns the exit code."""
    suppressed: list[SuppressedFinding] = []
    trees = {path.parent: manifest for path, manifest in manifests.items()}
    findings = verify_merged(merge.into, trees, merge.planned, suppressed.append)
    print_suppressed(suppressed)
    markdown = findings_markdown(findings, count_findings(findings, "Verified", suppressed))
    add_summary(["### Verification", ""], markdown.splitlines())
    return show_findings(findings, "text", what=str(merge.into), suppressed=suppressed)


def place(merge: Merge, manifest: kci.Manifest, merged: list[kci.Manifest]) -> Path:
    """The path of a manifest: at the top of the one tree, or of its kernel's."""
    return merge.into / FILE_NAME if len(merged) == 1 else merge.into / manifest.kernel / FILE_NAME


def plan_file(plan: str) -> Path | None:
    """The plan as a file: the input is JSON, a file, or a folder with the uploads of each attempt."""
    if not plan:
        return None
    if not plan.startswith("{"):
        files = [*Path(plan).rglob(PLAN_FILE)] if Path(plan).is_dir() else [Path(plan)]
        if not all(file.is_file() for file in files) or not files:
            fail(f"the input `plan` is neither JSON nor a file or folder with it: {plan[:200]!r}", 2)
        return files[0] if len(files) == 1 else max(files, key=lambda file: kci.read_plan(file).attempt)
    path = runner_temp() / "kci-plan.json"
    path.write_text(plan, encoding="utf-8")
    return path


def make_room(into: Path, planned: kci.Plan | None) -> None:
    """Move each earlier tree to its new place; one of another version is removed."""
    versions = {kernel.name: kernel.version for kernel in planned.kernels} if planned is not None else {}
    for path, manifest in find_manifests(into).items():
        kernel = manifest.kernel
        if manifest.version != versions.get(kernel, manifest.version):
            shutil.rmtree(path.parent)
        elif path.parent == into and versions.keys() - {kernel}:
            aside = into.with_name(f"{into.name}-aside")
            into.rename(aside)
            into.mkdir()
            aside.rename(into / kernel)


def find_manifests(into: Path) -> dict[Path, kci.Manifest]:
    """The manifests of one tree, or of the trees of several kernels."""
    single = into / FILE_NAME
    paths = [single] if single.is_file() else sorted(into.glob(f"*/{FILE_NAME}"))
    manifests = {path: read_manifest(path.parent) for path in paths}
    return {path: manifest for path, manifest in manifests.items() if manifest is not None}


def pack(into: Path, tar: Path) -> None:
    """Pack a tree reproducibly: sorted, without times and owners."""
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


def report(manifests: Sequence[kci.Manifest]) -> None:
    """Report present and missing variants in log and summary."""
    present = sum(len(manifest.present) for manifest in manifests)
    lacking = sum(len(manifest.missing) for manifest in manifests)
    print(f"{count(present, 'variant')} present, {lacking} missing")
    if lacking:
        print(f"::warning::missing: {count(lacking, 'planned variant')}", flush=True)
    add_tables(tree_table(manifest) for manifest in manifests)
