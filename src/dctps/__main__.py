"""`python -m dctps` is the command `dctps`."""

from dctps.cli import main

if __name__ == "__main__":
    raise SystemExit(main())
