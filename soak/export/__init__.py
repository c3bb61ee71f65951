"""What people and machines see of a run: Prometheus metrics, the terminal, summary files."""
