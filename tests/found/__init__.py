"""Soaks of simulators with planted faults, by the command line and by what ships."""
