"""What a script can be asked for: groups of flags, recipes, the variants' own flags, and reading them."""
