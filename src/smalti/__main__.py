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

    try:
        run()
    finally:
        end_quickly()


def end_quickly() -> None:
    """Let the interpreter not collect garbage once more at its end.

    It would look at each object of each module several times, only to hand back memory that the
    operating system takes anyway: 0.2 s of a process that makes a picture. What `atexit` knows of
    is still done; a file that is open in a cycle of references is not flushed, and `__del__` of
    what is in one is not called.
    """
    import gc

    gc.freeze()


if __name__ == "__main__":
    main()
