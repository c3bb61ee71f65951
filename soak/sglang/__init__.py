"""The only code that knows SGLang's HTTP: requests, typed decoding, fingerprint, preflight, metrics."""
