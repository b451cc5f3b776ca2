"""`[engines.<name>]` of kci.toml: where legs run that are not built by this process."""

from __future__ import annotations

import enum

from kci.config.model import Table, Unsigned
from kci.config.values import Backend, System


class EngineKind(enum.StrEnum):
    """What a place is."""

    LOCAL = "local"
    SLURM = "slurm"
    SSH = "ssh"
    HF_JOBS = "hf-jobs"
    COMMAND = "command"


class EngineSettings(Table, frozen=True):
    """One place where legs can run. Of several that take a leg, the one that is done with it first gets it."""

    type: EngineKind
    backends: tuple[Backend, ...] = ()
    """Which legs it takes; without it, those of every backend, and noarch ones."""
    systems: tuple[System, ...] = ()
    """What its machines are; without it x86_64-linux, for `local` what this machine is."""
    builds: bool = True
    """Whether `auto` sends it legs that build; `false` for one that only tests, or is a fallback."""
    tests: tuple[Backend, ...] = ()
    """The backends whose merged variants it tests with `--test`; without it `cpu` for `local`, none for others."""
    capability: str | None = None
    """The CUDA compute capability of its GPUs, such as `8.9`: variants that need a higher one are not tested there."""
    archs: tuple[str, ...] = ()
    """The archs of its ROCm GPUs, such as `gfx942`: variants for none of them are not tested there."""
    test_python: str | None = None
    """A Python there with torch, kernels and pytest for tests; without it `python3`, for `cpu` one of kci's own."""
    fallback: str | None = None
    """The engine that takes over legs that have waited for this one too long."""
    fallback_minutes: float = 30.0
    """How long that is: for its queue, or because it cannot be reached."""
    kci: tuple[str, ...] = ()
    """How kci is started there; without it `kci`, for `local` the kci that runs. `{image}` is the leg's image."""
    container: str = "none"
    """`none`: kci builds on the machine itself; `auto`: in the leg's image, by that machine's docker or podman."""
    cores: Unsigned = 4
    memory_gb: Unsigned = 16
    at_once: Unsigned = 32
    """How many legs may be there at the same time."""
    queue_minutes: float = 0.0
    """What a leg waits there, roughly; only for choosing between engines."""
    restarts: Unsigned = 2
    """How often a leg is started again that the engine has lost."""
    poll_seconds: float | None = None
    """How often it is asked; without it 0.2 for `local`, 2 for `ssh`, 5 for `slurm` and `command`, 10 for `hf-jobs`."""
    price: float | None = None
    """What an hour of a leg costs."""
    currency: str = "USD"
    max_artifact_mb: Unsigned = 2048
    environment: tuple[str, ...] = ()
    """Variables of the machine that legs see besides the usual ones. Values never travel."""
    partition: str | None = None
    """slurm"""
    gres: str = "gpu:1"
    """slurm: what a leg asks for that needs a GPU."""
    options: dict[str, str] = {}  # noqa: RUF012  - msgspec copies it
    """slurm: more of sbatch's options, by their long names. `{image}` stands for the leg's image."""
    host: str | None = None
    """ssh"""
    port: Unsigned = 22
    user: str | None = None
    known_hosts: str | None = None
    """ssh: the file with the host's key, in place of ~/.ssh/known_hosts."""
    identity: str | None = None
    """ssh: the file with the private key, in place of those that ssh would take."""
    folder: str | None = None
    """slurm: a folder that all machines of the cluster share. ssh: a folder there."""
    python: str = "python3"
    """slurm, ssh, command: the Python there that starts a leg, 3.8 or newer."""
    namespace: str | None = None
    """hf-jobs: the user or organization that pays."""
    flavor: str | None = None
    """hf-jobs: the machine, in place of the cheapest that does."""
    image: str | None = None
    """hf-jobs: the image, in place of the leg's."""
    repository: str | None = None
    """hf-jobs: the private dataset repository that sources go into, `owner/name`."""
    bucket: str | None = None
    """hf-jobs: the bucket that artifacts come out of, `owner/name`."""
    submit: tuple[str, ...] = ()
    """command: see docs/engines.md for this and the next ones."""
    find: tuple[str, ...] = ()
    poll: tuple[str, ...] = ()
    cancel: tuple[str, ...] = ()
    fetch: tuple[str, ...] = ()
