"""One script for each change, named by its number."""
