"""The model families, one file each; every `Family` in a module here is known to Smalti."""
