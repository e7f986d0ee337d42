"""`python -m milepost`: the command line, where the installed script is not at hand."""

from milepost.cli import main

if __name__ == "__main__":
    raise SystemExit(main())
