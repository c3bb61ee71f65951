"""From an alarm to something that can be replayed, shrunk and handed to somebody else."""
