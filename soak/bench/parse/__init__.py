"""How fast answers with many logprobs become arrays, beside a JSON parser on the same bytes."""
