"""The report of a run as one HTML file, and two runs beside each other. Reads files; sends nothing."""
