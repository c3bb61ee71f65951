"""Stand-in for SGLang's compiled kernel library, which has no build for a plain CPU.

What the tiny models need is in ``mamba``; every other kernel raises when called. As
``torch.ops.sgl_kernel.convert_weight_packed`` is left undefined, SGLang finds no AMX support and takes its
own torch fallbacks.
"""

import torch

from sgl_kernel import mamba

__version__ = "0.0.0+cpustub"


def __getattr__(name):
    if name.startswith("__"):
        raise AttributeError(name)

    def missing(*_args, **_kwargs):
        raise NotImplementedError(f"this CPU stand-in has no kernel {name!r}")

    missing.__name__ = name
    return missing


for _kernel in (mamba.fused_gdn_gating_cpu, mamba.fused_sigmoid_gating_delta_rule_update_cpu):
    setattr(torch.ops.sgl_kernel, _kernel.__name__, _kernel)
