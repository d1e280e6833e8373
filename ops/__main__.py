"""`python -m ops` is the same command as `stack`."""

from ops.cli import main

if __name__ == "__main__":
    main()
