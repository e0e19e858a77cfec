"""A graph becomes a module: all that is known of a program before a device runs it.

Nothing here asks a device, reads a file or a clock, or calls native code. What a device is comes in
as numbers, and what is made is plain data.
"""
