"""From probe results to a verdict: calibration by controls, evidence, ceilings. Pure arithmetic, no I/O."""
