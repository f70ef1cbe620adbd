"""`python -m eventlog` is the command `eventlog`."""

from eventlog.cli import main

if __name__ == "__main__":
    main()
