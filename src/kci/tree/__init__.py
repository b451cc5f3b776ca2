"""From a built variant to the tree that users load: metadata, digest, pack, merge, manifest,
signatures.
"""
