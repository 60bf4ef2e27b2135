"""Tokenizers, configurations and models, patched and made ready for training."""
