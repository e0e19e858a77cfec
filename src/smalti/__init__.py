"""Smalti: a prompt becomes a picture, and a graph a native program, through our own compiler."""
