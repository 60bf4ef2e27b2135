"""One run: the training loop, exact checkpoints, and what a run leaves behind."""
