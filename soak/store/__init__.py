"""What must outlive a process: evidence, alarms, and what people said of them, in one SQLite file."""
