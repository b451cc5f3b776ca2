"""`python -m kci`."""

from kci.cli import run

if __name__ == "__main__":
    run()
