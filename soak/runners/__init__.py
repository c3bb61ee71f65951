"""Known faults as data, and which of their fixes a server carries."""
