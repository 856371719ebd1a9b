"""Parity with a scratchpad: a scheme that looks at three tokens answers 200 bits after training on 20.

Run: python examples/parity_scratchpad.py none:window=3 sandwich rotary none

`fieldlens paper parity` asks for the parity of a whole string at its end, and no scheme answers past the training
length. Here the model writes the running parity after each bit: 1 1 0 1 1 0 for the bits 1, 0, 1. Each answer then
depends on the two tokens before it, so that a narrow window suffices. This is another task than that of the claim.
"""

import argparse

import torch
import torch.nn.functional as F
from torch import Tensor

from fieldlens.models.decoder import Config, Decoder

TRAINED, TESTED = 20, (10, 20, 30, 40, 100, 200)


def strings(count: int, bits: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Bits and running parities in turn, (B, 2·bits), and the parities, (B, bits); parities are tokens 2 and 3."""
    bits_BN = torch.randint(2, (count, bits), generator=generator)
    parity_BN = bits_BN.cumsum(1) % 2
    return torch.stack([bits_BN, parity_BN + 2], 2).flatten(1), parity_BN


def train(scheme: str, steps: int, seed: int) -> Decoder:
    torch.manual_seed(seed)
    generator = torch.Generator().manual_seed(seed)
    model = Decoder(Config(scheme=scheme, layers=2, width=32, heads=4, vocab_size=4, train_length=2 * TRAINED))
    optimiser = torch.optim.Adam(model.parameters())
    for step in range(steps):
        bits = int(torch.randint(1, TRAINED + 1, (2,), generator=generator).max())
        ids_BT, parity_BN = strings(64, bits, generator)
        loss = F.cross_entropy(model(ids_BT)[:, 0::2].flatten(0, 1), (parity_BN + 2).flatten())
        optimiser.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for group in optimiser.param_groups:
            group["lr"] = 2e-3 * min(1.0, (step + 1) / 100) * (1 - step / steps)
        optimiser.step()
        model.scheme.project()
    return model


@torch.no_grad()
def solved(model: Decoder, bits: int, count: int = 256) -> float:
    """Share of strings with every answer right, which is what writing the scratchpad on one's own needs too."""
    ids_BT, parity_BN = strings(count, bits, torch.Generator().manual_seed(bits))
    answers = [model(part_BT)[:, 0::2, 2:].argmax(-1) for part_BT in ids_BT.split(32)]
    return float((torch.cat(answers) == parity_BN).all(1).double().mean())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("schemes", nargs="+", metavar="SPEC")
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=1235)
    options = parser.parse_args()
    print("scheme", *(f"{bits} bits" for bits in TESTED), sep="\t")
    for scheme in options.schemes:
        model = train(scheme, options.steps, options.seed)
        print(scheme, *(f"{solved(model, bits):.0%}" for bits in TESTED), sep="\t", flush=True)


if __name__ == "__main__":
    main()
