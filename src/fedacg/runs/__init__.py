"""Runs: building, running, storing and loading them."""
