"""The console script, which `python -m smalti` is too."""


def main() -> None:
    """Load the command line, then run it.

    Python's own handler of Ctrl-C would show a traceback while modules load, so another one is
    installed first.
    """
    try:
        from smalti.cli.interrupt import end_at_once

        end_at_once()
    except KeyboardInterrupt:  # in the milliseconds before that
        raise SystemExit(130) from None
    from smalti.cli.main import main as run

    run()


if __name__ == "__main__":
    main()
