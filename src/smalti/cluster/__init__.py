"""Computers that work together: workers on each of them, asked by one process that keeps the books.

    interface.py ── what is asked of a cluster ──► on_ray.py, the only one that knows Ray
    waiting.py: answers of all, and who is late
    greeting.py: whether a node can do the work; shared_cache.py: what one compiles, all have
"""
