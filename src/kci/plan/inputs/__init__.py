"""The files that decide a variant's bytes, and the rules about them."""
