"""From sources and a toolchain to a variant directory: noarch copies, native compiles, nix
delegates.
"""
