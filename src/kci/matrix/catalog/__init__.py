"""Dated data about toolchains: rows, arch tables, runners, images, prices."""
