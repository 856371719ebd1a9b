"""The charts and tables of the HTML report, in their order.

A chart is one file in this folder: a function from measurements and colours to blocks of the report, listed in
`CHARTS`. Figures of matplotlib (PNG and SVG) are in `reporting/plots.py`.
"""

from collections.abc import Callable, Sequence

from fieldlens.receptive.charts.base import Colours
from fieldlens.receptive.charts.cumulative import cumulative_chart
from fieldlens.receptive.charts.explorer import explorer
from fieldlens.receptive.charts.fields_table import fields_table
from fieldlens.receptive.charts.layers import layer_chart
from fieldlens.receptive.charts.perplexity import perplexity_chart
from fieldlens.receptive.charts.probe import probe_chart
from fieldlens.receptive.charts.profile import profile_chart
from fieldlens.receptive.result import Measurement
from fieldlens.reporting.blocks import Block

CHARTS: tuple[Callable[[Sequence[Measurement], Colours], list[Block]], ...] = (
    explorer,
    cumulative_chart,
    fields_table,
    profile_chart,
    layer_chart,
    probe_chart,
    perplexity_chart,
)
"""Each returns no blocks if the measurements lack its data."""
