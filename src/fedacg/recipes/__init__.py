"""Experiments by name, as TOML files."""
