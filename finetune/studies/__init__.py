"""The studies of docs/evidence.md: running them, and writing the page from their numbers."""
