"""A server that does nothing but answer: the common target of ``soak bench load``."""
