"""One soak run, from a config to a verdict: the place where the parts are wired together."""
