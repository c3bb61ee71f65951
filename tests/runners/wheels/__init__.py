"""Checks and edits against SGLang's published wheels, which are downloaded and never committed."""
