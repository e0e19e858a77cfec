"""Programs and what they run on: memory plan, threads, devices, caches; the only ctypes."""
