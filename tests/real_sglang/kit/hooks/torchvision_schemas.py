"""Let the CUDA build of torchvision be imported beside a CPU-only torch.

Its compiled library does not load there, and the import then dies while it registers fake kernels for
operators nobody declared. Declaring their schemas first is enough: nothing here ever calls them.
"""

import sys


class _DeclareFirst:
    """A finder that finds nothing: it only sees the import of torchvision coming."""

    library = None  # torch drops the declarations with the object

    def find_spec(self, name, path=None, target=None):
        if name == "torchvision":
            sys.meta_path.remove(self)
            import torch

            _DeclareFirst.library = torch.library.Library("torchvision", "FRAGMENT")
            for operator in ("nms", "qnms"):
                _DeclareFirst.library.define(
                    f"{operator}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"
                )


def install():
    """See the import of torchvision coming, from now on."""
    sys.meta_path.insert(0, _DeclareFirst())
