"""Write a tiny model with random weights: ``make_model.py NAME OUT_DIR [--seed N] [--std X]``.

NAME is a folder of ``models/`` beside this file. Offline; runs in the server's own environment. The weights
are large on purpose (embeddings 1.0, matrices 0.2): with the usual 0.02 the logits hardly depend on the
context and a corrupted cache would not show. For the same reason recurrent layers get slow decay: with the
library's own initial values a state forgets within three tokens, and a lost one would go unseen.
"""

import argparse
import shutil
import sys
from pathlib import Path

KIT = Path(__file__).resolve().parent
sys.path.insert(0, str(KIT / "hooks"))

import torchvision_schemas  # noqa: E402  (transformers imports torchvision)

torchvision_schemas.install()

import torch  # noqa: E402
from safetensors.torch import load_file, save_file  # noqa: E402
from transformers import AutoConfig, AutoModelForCausalLM  # noqa: E402


def randomise(model: torch.nn.Module, *, seed: int, std: float) -> None:
    """Fill every parameter in place, from one generator, in the model's own order."""
    generator = torch.Generator().manual_seed(seed)
    for name, parameter in model.named_parameters():
        if parameter.dim() >= 2:
            scale = 1.0 if "embed" in name else std
            parameter.copy_(torch.randn(parameter.shape, generator=generator) * scale)
        elif name.endswith("dt_bias"):  # step sizes 0.001 to 0.1: the state remembers 3 to 1,000 tokens
            step = torch.exp(torch.rand(parameter.shape, generator=generator) * 4.6 - 6.9)
            parameter.copy_(torch.log(torch.expm1(step)))
        elif name.endswith("A_log"):  # decay rates 1 to 4 per unit of step size
            parameter.copy_(torch.log(1 + 3 * torch.rand(parameter.shape, generator=generator)))


def write_model(name: str, out: Path, *, seed: int, std: float) -> int:
    """Write ``config.json`` and ``model.safetensors`` into ``out``; return the number of parameters."""
    source = KIT / "models" / name / "config.json"
    out.mkdir(parents=True, exist_ok=True)
    shutil.copy(source, out)
    torch.manual_seed(seed)
    model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(out), dtype=torch.float32)
    with torch.no_grad():
        randomise(model, seed=seed, std=std)
    model.save_pretrained(out)
    # SGLang wants the hand-written config, not what transformers makes of it ...
    shutil.copy(source, out)
    # ... and NemotronH's embedding under the name the published checkpoints give it.
    weights = load_file(out / "model.safetensors")
    if "backbone.embedding.weight" in weights:
        weights["backbone.embeddings.weight"] = weights.pop("backbone.embedding.weight")
        save_file(weights, out / "model.safetensors", metadata={"format": "pt"})
    return sum(parameter.numel() for parameter in model.parameters())


def main() -> None:
    known = sorted(folder.name for folder in (KIT / "models").iterdir())
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("name", choices=known)
    parser.add_argument("out", type=Path)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--std", type=float, default=0.2)
    arguments = parser.parse_args()
    count = write_model(arguments.name, arguments.out, seed=arguments.seed, std=arguments.std)
    print(f"{arguments.out}: {count} parameters")


if __name__ == "__main__":
    main()
