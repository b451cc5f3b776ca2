"""What stands below the options in the help of a command: a line to copy, and what it does."""

from __future__ import annotations

EXAMPLES: dict[str, tuple[tuple[str, str], ...]] = {
    "kci": (
        ("kci init my-kernel", "write a new kernel"),
        ("kci run", "build what this machine can build, merge and verify it"),
        ("kci matrix --explain", "list the variants, and why each exists"),
    ),
    "init": (
        ("kci init my-kernel", "write a new kernel, and ask for its options"),
        (
            "kci init my-kernel --backend cuda --backend rocm --stable-abi 2.11 -y",
            "write a kernel for two backends, and ask nothing",
        ),
        ("kci init my-kernel --from ../old-extension", "convert a setup.py or a kernel-builder repository"),
    ),
    "run": (
        ("kci run", "build every variant that this machine can build, merge, verify"),
        ("kci run --where 'torch == newest' --backend cpu", "build only some variants"),
        ("kci run --engine cluster", "build on a cluster, a host or a service from kci.toml"),
    ),
    "matrix": (
        ("kci matrix --explain", "list kept and dropped variants, with the line that decided it"),
        ("kci matrix --where 'cuda >= 13.0' --format names", "print only names"),
        ("kci matrix . --format html > matrix.html", "write a page with filters"),
    ),
    "diff": (("kci diff main:relu relu", "compare a branch with main"),),
    "check": (
        ("kci check", "check every kernel in this directory and kci.toml"),
        ("kci check --fix", "fix what is safe to fix, then check"),
    ),
    "update": (
        ("kci update --diff", "print what would change"),
        ("kci update --catalog next.toml --diff", "also migrate to the next edition of the catalog"),
    ),
    "schema": (("kci schema > .build.schema.json", "write the schema for an editor"),),
    "plan": (
        ("kci plan --affected main", "list the jobs of a pull request"),
        ("kci plan --max-cost 20", "fail if a run would cost more"),
    ),
    "render": (("kci render", "write the workflows"), ("kci render --check", "fail if they are out of date")),
    "build": (
        ("kci build --variant torch213-cxx11-cpu-x86_64-linux", "build one variant"),
        ("kci build --variant torch213-cxx11-cu130-x86_64-linux --dry-run", "print its commands"),
    ),
    "test": (
        ("kci test", "test what this machine built"),
        ("kci test --no-isolation", "test with this Python's torch, on the GPU"),
    ),
    "pack": (("kci pack build/torch-cpu", "make the artifact of a variant"),),
    "merge": (("kci merge artifacts --into build --plan plan.json", "merge every planned variant, or fail"),),
    "verify": (
        ("kci verify build", "verify a tree"),
        ("kci verify build --format table", "list the variants that may be published"),
    ),
    "publish": (
        ("kci publish --dry-run", "print what would change on the Hub"),
        ("kci publish --repo-id acme/my-kernel", "publish build/ in one commit"),
    ),
    "sign": (("kci sign build --key key.pem", "sign a tree"),),
    "compat": (("kci compat coverage --hub acme/my-kernel", "compare published and expected variants"),),
    "compat coverage": (
        ("kci compat coverage relu", "compare the tree relu/build with the expected variants"),
        ("kci compat coverage relu --hub -", "compare the repository on the Hub that build.toml names"),
    ),
    "compat record": (("kci compat record results --history history", "append the results of a run"),),
    "compat decide": (("kci compat decide --history history", "list the issues to open, update and close"),),
    "compat report": (
        ("kci compat report --history history > report.html", "write one page"),
        ("kci compat report --history history --into site", "write pages and badges for GitHub Pages"),
    ),
    "compat moves": (("kci compat moves kernels", "list the pull requests for each kernel"),),
    "compat freshness": (("kci compat freshness relu --upstream", "list what is outdated"),),
    "catalog": (("kci catalog show --where 'torch == newest'", "list the newest toolchains"),),
    "catalog show": (
        ("kci catalog show", "print the default edition"),
        ("kci catalog show 2026-08-20 --where 'rocm == newest'", "print some rows of an older edition"),
    ),
    "catalog check": (("kci catalog check next.toml", "check an edition or an overlay"),),
    "catalog import": (
        ("kci catalog import build-variants.json --as-of 2026-08-20 > reference.toml", "convert the reference's table"),
    ),
    "catalog next": (
        (
            "kci catalog next kernels --index cu132.html --as-of 2026-11-21 --into next.toml",
            "propose an edition, and list what it changes",
        ),
    ),
    "catalog outdated": (("kci catalog outdated --days 60", "exit 1 if it is older than 60 days"),),
    "explain": (("kci explain KCI742", "explain a finding"),),
    "doctor": (("kci doctor", "list what this machine lacks, and how to install it"),),
    "clean": (("kci clean builds --older-than 30 --yes", "remove old builds from the cache"),),
    "completion": (
        ('eval "$(kci completion bash)"', "in ~/.bashrc"),
        ('eval "$(kci completion zsh)"', "in ~/.zshrc"),
        ("kci completion fish > ~/.config/fish/completions/kci.fish", "for fish, once"),
    ),
}
"""By command, and by group and command."""


def example_lines(command: str) -> list[str]:
    """The examples of a command, each with what it does in a comment above it."""
    lines: list[str] = []
    for line, what in EXAMPLES.get(command, ()):
        lines += [f"# {what}", line]
    return lines
