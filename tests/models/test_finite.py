"""Weights that are not finite are found, and only those."""

import pytest
import torch
from torch import nn

from fieldlens.models.finite import is_finite, not_finite


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_one_bad_value_is_found(dtype: torch.dtype, value: float) -> None:
    values = torch.ones(7, 11, dtype=dtype)
    assert is_finite(values)
    values[3, 5] = value
    assert not is_finite(values)
    values[3, 6] = -value
    assert not is_finite(values)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.bfloat16])
def test_large_values_whose_sum_overflows_are_finite(dtype: torch.dtype) -> None:
    largest = torch.full((64, 64), torch.finfo(dtype).max, dtype=dtype)
    assert is_finite(largest)
    assert is_finite(torch.cat([largest, -largest]))
    largest[1, 1] = float("nan")
    assert not is_finite(largest)


def test_bad_parameters_are_named() -> None:
    model = nn.Sequential(nn.Linear(3, 2), nn.Linear(2, 1))
    assert not_finite(model) == []
    with torch.no_grad():
        model[1].bias[0] = float("inf")
    assert not_finite(model) == ["1.bias"]
