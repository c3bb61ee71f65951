"""Soak: is what a deployed SGLang server's prefix cache serves what a cold recompute would give?"""

__version__ = "0.1.0"
