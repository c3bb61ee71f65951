"""Benchmarks: what soak says about its own quality and speed, measured."""
