"""One run by many processes: the shards of a plan, who starts them, and one verdict over all of them."""
