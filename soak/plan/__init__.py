"""The plan: a pure function (seed, resolved spec, index) -> items. No I/O, no clock, no process state."""
