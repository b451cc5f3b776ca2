"""From one built variant to the tree that users load: identity, metadata, digest, pack, merge, manifest."""
