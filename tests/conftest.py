"""What every test shares: one seed, and the schemes that contracts run over."""

import os
from collections.abc import Iterator
from typing import Literal, get_args, get_origin

import pytest
import torch
from hypothesis import settings

from fieldlens.schemes.discovery import registry
from fieldlens.schemes.spec import COMMON, options

pytest_plugins = ["browsing"]
settings.register_profile("unhurried", deadline=None)  # a busy machine is no failure
settings.load_profile("unhurried")
torch.set_num_threads(1)  # the suite runs in as many processes as there are cores
os.environ["OMP_NUM_THREADS"] = "1"  # also for the processes that tests start


CUDA = [pytest.mark.cuda, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]
DEVICES = ["cpu", pytest.param("cuda", marks=CUDA)]
"""Devices of tests that also run on a GPU where there is one."""


COMMON_SPECS = [
    "rotary:logits=ssmax,sink=learned",
    "none:logits=logn",
    "t5:sink=learned",
    "alibi:sink=learned",
    "fox:sink=learned",
    "cope:logits=ssmax,sink=learned",
]
"""Examples of the options that every scheme accepts."""


def all_specs() -> list[str]:
    """Every registered scheme, with its examples or every choice of every option, and of options that all have."""
    specs = COMMON_SPECS.copy()
    for name, cls in registry().items():
        specs += [name, *cls.examples]
        for key, parameter in options(cls).items():
            if get_origin(parameter.annotation) is Literal and key not in COMMON and not cls.examples:
                others = [choice for choice in get_args(parameter.annotation) if choice != parameter.default]
                specs += [f"{name}:{key}={choice}" for choice in others]
    return specs


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "every_spec" in metafunc.fixturenames:
        metafunc.parametrize("every_spec", all_specs())


@pytest.fixture(autouse=True)
def _seed() -> Iterator[None]:
    torch.manual_seed(0)
    yield
    torch.set_default_dtype(torch.float32)
    torch.set_flush_denormal(False)  # the command line sets it, and hypothesis notices


@pytest.fixture
def float64() -> None:
    torch.set_default_dtype(torch.float64)
