"""What stands below the options in the help of a command: a line to copy, and what it does."""

from __future__ import annotations

EXAMPLES: dict[str, tuple[tuple[str, str], ...]] = {
    "kci": (
        ("kci init my-kernel", "begin a kernel"),
        ("kci run", "build, merge and verify what this machine can"),
        ("kci matrix --explain", "which variants there are, and why"),
    ),
    "init": (
        ("kci init my-kernel", "ask, and write a new kernel"),
        ("kci init my-kernel --backend cuda --backend rocm --stable-abi 2.11 -y", "ask nothing"),
        ("kci init my-kernel --from ../old-extension", "take over a setup.py or a kernel-builder repository"),
    ),
    "run": (
        ("kci run", "build all that this machine can, merge, verify"),
        ("kci run --where 'torch == newest' --backend cpu", "only some of it"),
        ("kci run --engine cluster", "on a cluster, a host or a service that kci.toml names"),
    ),
    "matrix": (
        ("kci matrix --explain", "what must exist, what not, and which line decided it"),
        ("kci matrix --where 'cuda >= 13.0' --format names", "names alone"),
        ("kci matrix . --format html > matrix.html", "a page that can be filtered"),
    ),
    "diff": (("kci diff main:relu relu", "what a branch changes"),),
    "check": (
        ("kci check", "every kernel here and kci.toml"),
        ("kci check --fix", "correct what is safe to correct first"),
    ),
    "update": (
        ("kci update --diff", "what would change"),
        ("kci update --catalog next.toml --diff", "what the next edition of the catalog asks for too"),
    ),
    "schema": (("kci schema > .build.schema.json", "for the editor"),),
    "plan": (
        ("kci plan --affected main", "the jobs that a pull request needs"),
        ("kci plan --max-cost 20", "fail if a run would cost more"),
    ),
    "render": (("kci render", "write the workflows"), ("kci render --check", "fail if they are out of date")),
    "build": (
        ("kci build --variant torch213-cxx11-cpu-x86_64-linux", "one variant"),
        ("kci build --variant torch213-cxx11-cu130-x86_64-linux --dry-run", "the commands"),
    ),
    "test": (("kci test", "what was built here"), ("kci test --no-isolation", "with this Python's torch and the GPU")),
    "pack": (("kci pack build/torch-cpu", "its artifact"),),
    "merge": (("kci merge artifacts --into build --plan plan.json", "all that was planned, or fail"),),
    "verify": (("kci verify build", "a tree"), ("kci verify build --format table", "which variants may be published")),
    "publish": (
        ("kci publish --dry-run", "what would change on the Hub"),
        ("kci publish --repo-id acme/my-kernel", "the tree below build/, in one commit"),
    ),
    "sign": (("kci sign build --key key.pem", "an attestation over the tree"),),
    "compat": (("kci compat coverage --hub acme/my-kernel", "what is published against what should be"),),
    "compat coverage": (
        ("kci compat coverage relu", "the tree in relu/build against what should be there"),
        ("kci compat coverage relu --hub -", "the repository on the Hub that build.toml names"),
    ),
    "compat record": (("kci compat record results --history history", "append the results of a run"),),
    "compat decide": (("kci compat decide --history history", "the issues to open, update and close"),),
    "compat report": (
        ("kci compat report --history history > report.html", "one page"),
        ("kci compat report --history history --into site", "pages and badges, for GitHub Pages"),
    ),
    "compat moves": (("kci compat moves kernels", "what a newer range of toolchains asks of each kernel"),),
    "compat freshness": (("kci compat freshness relu --upstream", "what is older than it should be"),),
    "catalog": (("kci catalog show --where 'torch == newest'", "the toolchains"),),
    "catalog show": (
        ("kci catalog show", "the edition in use where nothing names one"),
        ("kci catalog show 2026-08-20 --where 'rocm == newest'", "some rows of another one"),
    ),
    "catalog check": (("kci catalog check next.toml", "is an edition or overlay consistent"),),
    "catalog import": (
        ("kci catalog import build-variants.json --as-of 2026-08-20 > reference.toml", "the reference's table"),
    ),
    "catalog next": (
        ("kci catalog next kernels --index cu132.html --as-of 2026-11-21 --into next.toml", "with what it changes"),
    ),
    "catalog outdated": (("kci catalog outdated --days 60", "exit 1 if it is older"),),
    "explain": (("kci explain KCI742", "why a finding matters"),),
    "doctor": (("kci doctor", "what is missing here, and what gets it"),),
    "clean": (("kci clean builds --older-than 30 --yes", "remove old builds from the cache"),),
    "completion": (('eval "$(kci completion bash)"', "in ~/.bashrc"),),
}
"""By command, and by group and command."""


def example_lines(command: str) -> list[str]:
    """The examples of a command, each with what it does in a comment above it."""
    lines: list[str] = []
    for line, what in EXAMPLES.get(command, ()):
        lines += [f"# {what}", line]
    return lines
