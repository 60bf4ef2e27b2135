"""Rows from a hub id, a local folder or files, checked, tokenised and batched."""
