"""Instructions: one folder a target, with the same file names in each."""
