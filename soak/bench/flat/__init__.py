"""Does a request cost the same after a million others: plan, journal, detectors, metrics."""
