"""One thread for BLAS.

The simulator's matrices are tiny, and OpenBLAS's spinning helpers only steal the other cores.

Best done by ``OPENBLAS_NUM_THREADS=1`` before NumPy is imported; this is for when NumPy is there already. It
touches nothing but that one setting, and a NumPy without OpenBLAS is left alone.
"""

from __future__ import annotations

import ctypes
from pathlib import Path

import numpy as np

SETTERS = ("scipy_openblas_set_num_threads64_", "scipy_openblas_set_num_threads", "openblas_set_num_threads")


def use_one_thread() -> bool:
    """Tell the OpenBLAS that NumPy carries to use one thread. False: none was found, nothing was changed."""
    for library in (Path(np.__file__).parent.parent / "numpy.libs").glob("*openblas*"):
        loaded = ctypes.CDLL(str(library))
        for name in SETTERS:
            setter = getattr(loaded, name, None)
            if setter is not None:
                setter(ctypes.c_int(1))
                return True
    return False
