"""The files that affect a variant's bytes, and lints about them."""
