"""kci's version and repository."""

__version__ = "0.1.0"

REPOSITORY = "kci/build"
"""kci's repository on GitHub and its actions. After the first release it stays, since attestations
name it."""

HOME = f"https://github.com/{REPOSITORY}"
