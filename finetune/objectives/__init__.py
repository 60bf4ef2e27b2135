"""What a model is trained and measured by: one file an objective."""
