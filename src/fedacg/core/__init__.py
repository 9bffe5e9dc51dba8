"""The flat vector, streams of randomness, devices and messages."""
