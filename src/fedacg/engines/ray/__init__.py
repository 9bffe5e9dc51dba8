"""The engine for Ray clusters."""
