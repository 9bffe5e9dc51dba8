"""The round loop and a client's work."""
