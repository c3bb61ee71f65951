"""Brings up a container engine of its own, and the shipped compose file on it, without a registry."""
