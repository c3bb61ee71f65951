"""Puts the plan's load on a server and says what was really in force: driver, back-off, coverage."""
