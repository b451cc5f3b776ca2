"""kci: CI for GPU kernels, from build.toml to a verified tree.

Public names (docs/api.md) are imported on first use.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from kci.version import __version__

if TYPE_CHECKING:
    from kci.builders.request import BuildOptions
    from kci.diagnostics import Diagnostic, Severity
    from kci.errors import (
        BuildFailedError,
        FindingsError,
        KciError,
        MissingToolError,
        UnsafeError,
        UsageError,
    )
    from kci.matrix.variants import Matrix, Variant
    from kci.plan.check import check_kernels
    from kci.plan.plan import Leg, Plan, read_plan
    from kci.plan.planning import PlannedRun, PlanRequest, plan_run
    from kci.plan.workspace import Choice, Workspace, open_workspace
    from kci.publish.publish import PublishedTree, PublishRequest, publish_tree
    from kci.run.build_leg import BuiltLeg, LegRequest, build_leg, leg_commands
    from kci.run.local import RunResult, outcomes_of, run_here, tree_places
    from kci.tree.manifest import Manifest
    from kci.tree.merge import merge as merge_artifacts
    from kci.tree.verify.requirements import verify as verify_path
    from kci.workflows.repository import RenderedFiles, render_workflows

_HOMES = {
    "kci.builders.request": "BuildOptions",
    "kci.diagnostics": "Diagnostic Severity",
    "kci.errors": "BuildFailedError FindingsError KciError MissingToolError UnsafeError UsageError",
    "kci.matrix.variants": "Matrix Variant",
    "kci.plan.plan": "Leg Plan read_plan",
    "kci.publish.publish": "PublishRequest PublishedTree publish_tree",
    "kci.workflows.repository": "RenderedFiles render_workflows",
    "kci.run.build_leg": "BuiltLeg LegRequest build_leg leg_commands",
    "kci.run.local": "RunResult outcomes_of run_here tree_places",
    "kci.tree.manifest": "Manifest",
    "kci.tree.merge": "merge_artifacts",
    "kci.tree.verify.requirements": "verify_path",
    "kci.plan.check": "check_kernels",
    "kci.plan.planning": "PlanRequest PlannedRun plan_run",
    "kci.plan.workspace": "Choice Workspace open_workspace",
}
"""The modules of the public names."""
_CALLED = {"merge_artifacts": "merge", "verify_path": "verify"}
"""Public names that differ from those in their module."""

__all__ = [
    "BuildFailedError",
    "BuildOptions",
    "BuiltLeg",
    "Choice",
    "Diagnostic",
    "FindingsError",
    "KciError",
    "Leg",
    "LegRequest",
    "Manifest",
    "Matrix",
    "MissingToolError",
    "Plan",
    "PlanRequest",
    "PlannedRun",
    "PublishRequest",
    "PublishedTree",
    "RenderedFiles",
    "RunResult",
    "Severity",
    "UnsafeError",
    "UsageError",
    "Variant",
    "Workspace",
    "__version__",
    "build_leg",
    "check_kernels",
    "leg_commands",
    "merge_artifacts",
    "open_workspace",
    "outcomes_of",
    "plan_run",
    "publish_tree",
    "read_plan",
    "render_workflows",
    "run_here",
    "tree_places",
    "verify_path",
]


def __getattr__(name: str) -> Any:
    for module, names in _HOMES.items():
        if name in names.split():
            value = globals()[name] = getattr(
                importlib.import_module(module), _CALLED.get(name, name)
            )
            return value
    raise AttributeError(f"module 'kci' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
