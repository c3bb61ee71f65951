"""How fast many probes are compared and judged."""
