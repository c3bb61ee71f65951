"""What to know of a server before it is soaked: looked at, tried with a few requests, and said."""
