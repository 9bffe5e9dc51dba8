"""The description of a run, without torch."""
