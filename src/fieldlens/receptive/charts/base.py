"""What the charts of the report share."""

import numpy as np

Colours = dict[int, tuple[str, str]]
"""Colour and marker of each measurement, by its id()."""


def rounded(line: np.ndarray) -> list[float | None]:
    """A line with the 5 digits that a chart can show."""
    return [float(f"{value:.5g}") for value in line]
