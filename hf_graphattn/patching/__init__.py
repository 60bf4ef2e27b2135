"""How filters are put into a model's attention modules, and the check that comes before."""
