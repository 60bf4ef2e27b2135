"""What sweep.py is made of: the space, its runs, the search, tables and figures."""
