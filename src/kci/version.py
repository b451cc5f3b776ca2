"""kci's version and names, in a module of their own so that every room may know them."""

__version__ = "0.1.0"

REPOSITORY = "kci/build"
"""kci's repository on GitHub, which also has its actions. No other line of the code names it, and a test holds files to
it that cannot read it (`docs/releasing.md`). After the first release it stays: attestations name it."""

HOME = f"https://github.com/{REPOSITORY}"
