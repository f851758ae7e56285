"""One run: the config determines its numbers, and a folder holds its files."""
