"""Runs: built, played, kept in a folder and read back."""
