"""Many runs of a script side by side: running them, and saying what they show."""
