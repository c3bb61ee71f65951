"""Mutation testing: small faults are put into the arithmetic, one at a time, and the tests must notice.

``python -m tests.mutation`` (``make mutation``) takes a sample; docs/mutation.md has what it found.
"""
