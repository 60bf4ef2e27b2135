"""The attention function that patched modules call, and the other ways in which a filter acts."""
