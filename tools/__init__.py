"""What made the files that ship in this repository; nothing of it is installed."""
