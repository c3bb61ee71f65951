"""The grade of the detectors: known faults and clean servers, recorded once, judged by several rules."""
