"""`python -m kci`."""

from kci.cli import main

if __name__ == "__main__":
    main()
