"""The rules that a tree, a variant and a binary must meet."""

from kci.tree.verify.requirements import verify, verify_with_suppressions

__all__ = ["verify", "verify_with_suppressions"]
