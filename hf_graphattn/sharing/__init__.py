"""What is written of a patched model: its files, their checksum, the card, the repository."""
