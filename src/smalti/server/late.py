"""What takes long to import, imported by one thread while all others wait for it.

A ping needs none of it, so a server answers before it is there. Two threads that import the same
packages at once, each from another end, are given modules that are not complete yet: Python does so
rather than let them wait for each other for ever.
"""

from __future__ import annotations

import threading

_turn = threading.Lock()


def load() -> None:
    """Import all that answers and workers need; to be called before anything of it is named."""
    with _turn:
        import smalti.diffusion.metadata
        import smalti.diffusion.option_text
        import smalti.diffusion.preview
        import smalti.diffusion.projection
        import smalti.diffusion.upscale
        import smalti.runtime.choice
        import smalti.runtime.devices
        import smalti.server.asked
        import smalti.server.beside
        import smalti.server.guide
        import smalti.server.models
        import smalti.server.thumbnails
        import smalti.server.upscaling  # noqa: F401
