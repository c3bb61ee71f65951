"""Is the warm answer the cold answer? Victims, passes, and the arithmetic of divergence and amnesia."""
