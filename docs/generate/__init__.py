"""The pages of the reference that are made from code: ``python -m docs.generate`` writes them anew.

Each module makes one page as text and never writes; a test holds the pages that are there to what it makes.
"""
