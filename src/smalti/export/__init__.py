"""Graphs for other compilers and run times."""
