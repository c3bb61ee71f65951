"""Appended to SGLang's dummy-weight loader: random weights whose logits depend on the whole context.

The loader's own values are so small that every token scores alike and a lost context would not show.
"""

import math as _math
import zlib as _zlib


def initialize_dummy_weights(model, low=-1e-3, high=1e-3, seed=1234):
    """Fill every floating-point parameter; the same values on every start and every rank of one shape."""
    for name, parameter in model.state_dict().items():
        if not torch.is_floating_point(parameter):  # noqa: F821 - the loader's own import
            continue
        generator = torch.Generator(device=parameter.device)  # noqa: F821
        generator.manual_seed(seed + _zlib.crc32(name.encode()) % 100000)
        normal = torch.randn(  # noqa: F821
            parameter.shape,
            generator=generator,
            device=parameter.device,
            dtype=torch.float32,  # noqa: F821
        )
        if "dt_bias" in name:
            value = -3 + 0.5 * normal
        elif "A_log" in name:
            value = 0.3 * normal
        elif name.split(".")[-1] == "A":
            value = -torch.exp(0.3 * normal)  # noqa: F821
        elif parameter.dim() < 2:
            value = 0.02 * normal if name.endswith("bias") else 1 + 0.1 * normal
        elif "embed" in name:
            value = normal
        elif "lm_head" in name or "unembed" in name:
            value = normal * (2.5 / _math.sqrt(parameter.shape[-1]))
        else:
            value = normal * (1.2 / _math.sqrt(parameter[0].numel()))
        parameter.data.copy_(value.to(parameter.dtype))
