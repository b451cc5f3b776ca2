"""The tables of kci.toml, which is optional, as is every key."""

from __future__ import annotations

from fnmatch import fnmatchcase

from msgspec import field

from kci.config.model import Table, Unsigned
from kci.config.values import (
    Backend,
    Forks,
    Grouping,
    KernelName,
    PublishOn,
    RunnerKind,
    StaleVariants,
    System,
    Tier,
    Version,
)


class RowTable(Table):
    """A `[[row]]`: one torch and backend, at several compute versions and systems."""

    torch: Version
    backend: Backend
    systems: tuple[str, ...]
    compute: tuple[Version, ...] = ()
    bundled: bool = True
    tvm_ffi: Version | None = None
    release: str | None = None
    """The exact release of torch, such as `2.16.0rc1`, in place of the one that kci takes."""
    index: str | None = None
    """The index that has the release: `test`, `nightly/cu132`, or an address."""


class EditionRow(RowTable):
    """A `[[row]]` of kci's own catalog."""

    tvm_ffi_unknown_since: str | None = None
    """The day since which no source says whether it still has its tvm-ffi."""


class OverlayTable(Table):
    """Changes to the catalog."""

    replace: bool = False
    """Start from an empty table, so that only the rows given here exist."""
    keep: tuple[str, ...] = ()
    """Expressions; a row stays only if it matches every one."""
    drop: tuple[str, ...] = ()
    """Expressions; a row goes if it matches one."""
    row: tuple[RowTable, ...] = ()
    """Rows to add; each replaces an equal row of the table, or goes to its end."""


class KernelOverlay(OverlayTable):
    """An `[[overlay]]` of kci.toml."""

    kernel: str | None = None
    """The name of a kernel; without it, every kernel."""


class OverlayFile(OverlayTable):
    """An overlay in a separate file."""

    edition: str | None = None
    """The edition to change; None for the default."""


KCI_TOML = "kci.toml"
EXTENSIONS = ".github/kci"
"""The folder of a repository's own steps and jobs."""


class Machine(Table):
    """A kind of runner. Keys that are left out keep their default."""

    labels: tuple[str, ...] | None = None
    """The labels of `runs-on`; all have to match."""
    group: str | None = None
    cpus: Unsigned | None = None
    memory_gb: Unsigned | None = None
    price: float | None = None
    """Price of an hour, in `currency`."""
    currency: str | None = None
    """Three letters, such as USD."""
    pool_size: Unsigned | None = None
    """How many such runners there are; no more jobs than that run in parallel."""


Machines = dict[RunnerKind, dict[System, Machine]]
"""Runners that build or test, by backend and system. A backend's own entry precedes `any`."""


class BackendImages(Table):
    """Build images by system, or by system and compute version (`{compute}`); other versions get
    kci's image.
    """

    aarch64_linux: str | dict[str, str] | None = field(default=None, name="aarch64-linux")
    x86_64_linux: str | dict[str, str] | None = field(default=None, name="x86_64-linux")
    disk_gb: Unsigned | None = None
    """The free disk that the image and a build in it need; kci frees space on a hosted runner with
    less."""


class Limit(Table):
    """Limits of the legs of one kernel, one backend, or both.

    Later entries override earlier ones, key by key.
    """

    kernel: str | None = None
    """The name of a kernel; without it, every kernel."""
    backend: Backend | None = None
    """Without it, every backend."""
    max_jobs: Unsigned | None = None
    """How many compilers run in parallel in one leg."""
    cores: Unsigned | None = None
    """How many threads each nvcc may use."""
    timeout_minutes: Unsigned | None = None
    """The timeout of a leg."""
    parts: Unsigned | None = None
    """How many legs share the objects of a variant; without it, one builds all of it."""


class UserTier(Table):
    """A custom tier: what its base tier builds, narrowed.

    Different keys narrow, entries of one list widen.
    """

    base: Tier = Tier.RELEASE
    backends: tuple[Backend, ...] = ()
    systems: tuple[System, ...] = ()
    only: tuple[str, ...] = ()
    """Patterns for variant names, such as `torch213-*`."""
    where: str | None = None
    """An expression, such as `cuda >= 13.0 and torch == newest`; see docs/filters.md."""
    pairwise: bool = False
    """Select a subset in which every pair of torch, compute version and system still occurs."""


class PlanTable(Table):
    """How variants are distributed over jobs."""

    group: Grouping = Grouping.VARIANT
    load: tuple[Backend, ...] | None = None
    """The backends whose variants are loaded after they are built; without it, all for which there
    is torch."""


class Nix(Table):
    """`[nix]`: variants for the nix builder, which kci's own builders do not compile."""

    systems: tuple[System, ...] = ()
    backends: tuple[Backend, ...] = ()


class Checkout(Table):
    """How the jobs of rendered files fetch the repository."""

    submodules: bool = True
    """False fetches no submodule."""
    token: str | None = None
    """The secret with a token that may read private submodules."""


class PullRequest(Table):
    """The builds of a pull request."""

    tier: str = "pr"
    forks: Forks = Forks.HOSTED
    """The treatment of legs that need a self-hosted machine, in a pull request from a fork."""
    comment: bool = False
    """True if a comment shows the results of the runs."""


class Tell(Table):
    """People to notify about failed legs of scheduled runs."""

    who: tuple[str, ...]
    """Accounts or teams, such as `@acme/kernels`."""
    kernel: str = "*"
    """A pattern for the kernel's name."""
    variant: str = "*"
    """A pattern for the variant's name."""

    def matches(self, kernel: str, variant: str) -> bool:
        return fnmatchcase(kernel, self.kernel) and fnmatchcase(variant, self.variant)


class Decisions(Table):
    """When scheduled runs lead to issues."""

    carry_out: bool = True
    """True if the scheduled workflow changes issues; false to show only what it would do."""
    tell: tuple[Tell, ...] = ()


class Schedule(Table):
    """The time of the scheduled run, and the consequences of its results."""

    cron: str | None = None
    """Five fields, as in crontab, in UTC."""
    tier: str = "compat"
    issues: Decisions = Decisions()


class Publish(Table):
    """Where a release goes. A kernel's own `general.hub` overrides this."""

    repo_prefix: str | None = None
    """The owner on the Hub; the kernel's name is appended."""
    branch: str | None = None
    """The branch; `{version}` stands for the kernel's version. Without it, `v{version}`."""
    prune: bool = False
    """True if variants that the kernel should no longer have are removed from the branch."""
    leave_out: StaleVariants = StaleVariants.ASK
    """The treatment of variants on the branch that are of other sources and that the release leaves
    out."""
    mirror: bool = False
    """True if `main` has the builds of a kernel's version 1 too, for loaders that do not know
    versions yet."""
    environment: str = "hub"
    """The environment on GitHub that the publishing jobs belong to; its reviewers approve them."""
    on: PublishOn = PublishOn.TAG
    """The event that publishes: the push of a tag, or each push to the default branch."""
    tags: tuple[str, ...] = ("v*",)
    """The tags whose push publishes; patterns as GitHub has them."""
    attest: bool = True
    """True if GitHub attests where each tree comes from."""
    sign: bool = False
    """True if each tree is signed with the identity of the run, as `kci sign` does."""
    pull_request: bool | tuple[KernelName, ...] = False
    """True for pull requests on the Hub in place of commits, as with --create-pr; or the kernels
    that have them."""

    def proposes(self, kernel: str) -> bool:
        """True if a kernel is published by pull requests on the Hub."""
        return (
            self.pull_request
            if isinstance(self.pull_request, bool)
            else kernel in self.pull_request
        )


class ActionPin(Table):
    """The commit that an action is pinned to, and the version that its comment names."""

    sha: str
    version: str = ""


class Actions(Table):
    """`[actions]`: where rendered workflows get kci and other actions from."""

    repository: str | None = None
    """The repository of kci's own actions, as `owner/name`: a fork, a mirror or a private copy."""
    ref: str | None = None
    """The ref of kci's own actions, behind the `@`: a tag, a branch or a full commit."""
    pins: dict[str, ActionPin] = {}
    """Commits of other actions, by `owner/name`."""


class Ignore(Table):
    """A rule that does not hold in some files, and why."""

    rule: str
    path: str
    """A file, or a pattern for files, relative to kci.toml."""
    reason: str


class LintSettings(Table):
    """`[lint]`."""

    ignore: tuple[Ignore, ...] = ()


class DeclaredInputs(Table):
    """Files outside of a kernel's directory that its sources may include."""

    paths: tuple[str, ...]
    """Files and directories, relative to kci.toml."""
    kernel: str | None = None
    """The name of a kernel; without it, every kernel."""


class Signing(Table):
    """`[signing]`: who may sign a tree or an artifact, and what an attestation has to name."""

    repository: str | None = None
    """The repository that files must come from, as `owner/name`."""
    workflow: str | None = None
    """The workflow that must have made them, as GitHub names it:
    `owner/name/.github/workflows/x.yaml@<ref>`."""
    trust_config: str | None = None
    """A trust configuration of a Sigstore of your own, relative to kci.toml; without it, the public
    one."""


class Settings(Table):
    """A complete kci.toml."""

    runners: Machines = {}
    images: dict[Backend, BackendImages] = {}
    """Build images by backend."""
    test: dict[RunnerKind, dict[System, Machine] | bool] = {}
    """As `runners`; false for a backend that is not tested."""
    limits: tuple[Limit, ...] = ()
    tiers: dict[str, UserTier] = {}
    plan: PlanTable = PlanTable()
    nix: Nix = Nix()
    checkout: Checkout = Checkout()
    pull_request: PullRequest = PullRequest()
    schedule: Schedule = Schedule()
    publish: Publish = Publish()
    signing: Signing = Signing()
    actions: Actions = Actions()
    catalog: str | None = None
    """The name of an edition of the catalog, or a catalog file relative to kci.toml."""
    overlay: tuple[KernelOverlay, ...] = ()
    """Changes to the catalog, for every kernel or one; applied in order."""
    inputs: tuple[DeclaredInputs, ...] = ()
    """Files outside of kernel directories that sources may include; they count as inputs."""
    lint: LintSettings = LintSettings()

    def inputs_of(self, kernel: str) -> tuple[str, ...]:
        """Paths outside of a kernel's directory that its sources may include, relative to
        kci.toml.
        """
        paths = (
            path for entry in self.inputs if entry.kernel in (None, kernel) for path in entry.paths
        )
        return tuple(dict.fromkeys(paths))
