"""Is a tree, a variant directory, or a kernel with its sources and binaries, what users can rely on."""

from kci.tree.verify.requirements import verify, verify_with_suppressions

__all__ = ["verify", "verify_with_suppressions"]
