"""What every positional scheme adds to the score of a key, by its distance: a figure.

Run: python examples/bias_curves.py bias.png
"""

import sys

import torch
from matplotlib import pyplot as plt

import fieldlens
from fieldlens.schemes.discovery import registry

distances = torch.arange(512)
figure, axes = plt.subplots(figsize=(6, 4))
for name, cls in registry().items():
    bias_HN = fieldlens.scheme(name, heads=8, head_width=64).bias(distances)
    if bias_HN is not None:  # rotary, sinusoidal and none act elsewhere
        axes.plot(distances, bias_HN[3].detach(), label=cls.label, color=cls.colour)
        print(f"{name:10} a key 100 tokens back gets {bias_HN[3, 100].item():8.3f} on the fourth of eight heads")
axes.set(xlabel="distance", ylabel="bias", xscale="symlog")
axes.legend()
figure.savefig(sys.argv[1] if len(sys.argv) > 1 else "bias.png")
