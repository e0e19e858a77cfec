"""`python -m smalti` is the command line."""

from smalti.cli.main import main

if __name__ == "__main__":
    main()
