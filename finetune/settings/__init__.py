"""What a script can be asked for: groups of flags, the variants' own, recipes, reading them."""
