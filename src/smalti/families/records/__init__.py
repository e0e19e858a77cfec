"""The model families, one file each; every `ModelFamily` in a module here is known to Smalti."""
