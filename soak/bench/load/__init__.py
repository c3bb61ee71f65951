"""How fast soak's client is beside others: requests, chunks, CPU seconds, memory and schedule lag."""
