"""The console script, which `python -m smalti` is too."""

from smalti.cli.interrupt import ending_at_once


def main() -> None:
    """Load the command line, then run it."""
    with ending_at_once():
        from smalti.cli.main import main as run

    run()


if __name__ == "__main__":
    main()
