"""Experiments: faults put into a server's surroundings on purpose, on a leash, while the oracle watches."""
