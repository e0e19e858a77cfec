"""Standard output and standard error: any text goes out, and a full disk is no traceback.

File names may hold bytes, and a terminal's encoding may lack letters: those are shown escaped. A
reader that has seen enough (`smalti explain | head`) ends the command quietly; a full disk behind
standard output is one message; behind standard error there is nobody left to tell.
"""

from __future__ import annotations

import errno
import io
import os
import sys

import click

PIPE_CLOSED = 141
"""The exit code where nobody reads standard output any more: 128 and the number of SIGPIPE, as
shells have it of programs that this signal ends."""


class Refused(click.ClickException):
    """An error of the user's input, shown as one message."""

    exit_code = 2


def closed_on_windows(error: OSError, system: str) -> bool:
    """Whether an error of writing is how Windows says that nobody reads a pipe any more; there it
    is no BrokenPipeError.

    >>> closed_on_windows(OSError(22, "Invalid argument"), "win32")
    True
    >>> closed_on_windows(OSError(28, "No space left on device"), "win32")
    False
    """
    return system == "win32" and error.errno == errno.EINVAL


class Output(io.TextIOWrapper):
    """Standard output. Raises Refused where it cannot be written, and SystemExit where its reader
    has gone."""

    def write(self, text: str) -> int:
        """As of any stream."""
        try:
            return super().write(text)
        except OSError as error:
            self._lost(error)
            return 0

    def flush(self) -> None:
        """As of any stream."""
        try:
            super().flush()
        except OSError as error:
            self._lost(error)

    def _lost(self, error: OSError) -> None:
        self._discard()
        if isinstance(error, BrokenPipeError) or closed_on_windows(error, sys.platform):
            raise SystemExit(PIPE_CLOSED) from None
        raise Refused(f"cannot write to standard output: {error.strerror or error}; send it "
                      f"elsewhere, or make room")

    def _discard(self) -> None:
        """Let what is still held go nowhere; else Python tries it again when it ends."""
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, self.fileno())
        os.close(nowhere)


class Errors(Output):
    """Standard error. What cannot be written is left out."""

    def _lost(self, error: OSError) -> None:
        self._discard()


def prepare_streams() -> None:
    """Make both output streams what they are here, also where the caller has closed them."""
    for name, kind in (("stdout", Output), ("stderr", Errors)):
        stream = getattr(sys, name)
        if stream is None:
            stream = open(os.devnull, "w", encoding="utf-8")
        encoding, by_line = stream.encoding, stream.line_buffering
        setattr(sys, name, kind(stream.detach(), encoding, "backslashreplace",
                                line_buffering=by_line))
