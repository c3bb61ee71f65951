"""The embedded SGLang-compatible simulator: a small, readable model of SGLang's serving path.

Published cache bugs can be planted in it (``--fault``); each arises from the same cause as the real one. It
is a simulator and says so in ``/server_info``; it must never be taken for a model worth talking to.
"""
