"""fieldlens schemes: what there is, and what it looks like."""

import json
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter

from fieldlens.cli.console import console
from fieldlens.core.device import Machine

LONGEST = 2**24


def schemes(
    *specs: str,
    plot: Path | None = None,
    heatmap: bool = False,
    fit: bool = False,
    head: int | None = None,
    heads: int = 12,
    head_width: int = 64,
    length: int | None = None,
    log: bool = False,
    as_json: Annotated[bool, Parameter(name="--json")] = False,
    machine: Annotated[Machine, Parameter(name="*")] = Machine(),  # noqa: B008
) -> None:
    """List the positional schemes, or draw their biases.

    Example: fieldlens schemes sandwich alibi:shift=2 --plot bias.png

    Parameters
    ----------
    specs
        Specs such as sandwich:dims=64 or none:window=40; every scheme when none is given.
    plot
        Draw bias against distance into this file (.png, .svg, .pdf).
    heatmap
        Draw the matrix of one head instead: queries down, keys across.
    fit
        Fit a log curve to one head by least squares, and draw it beside the paper's.
    head
        The head to draw, from 1: all specs in one panel; the last head for heat maps and fits.
    heads
        How many heads the schemes are built for.
    head_width
        How wide each head is.
    length
        How many distances to draw; 512, or 8192 for heat maps and fits as in the paper.
    log
        Logarithmic distance axis.
    as_json
        Print JSON.
    """
    import torch

    from fieldlens.core.errors import BadInput
    from fieldlens.reporting.plots import bias_by_distance, check_format
    from fieldlens.schemes.discovery import registry
    from fieldlens.schemes.spec import scheme

    device, dtype = machine.start()
    torch.manual_seed(0)  # learned biases are drawn as training would find them
    if heatmap and plot is None:
        raise BadInput("--heatmap draws a picture: say where with --plot FILE.png")
    if plot is not None:
        check_format(plot)
    if head is not None and not 1 <= head <= heads:
        raise BadInput(f"--head is {head}, but there are {heads} heads, counted from 1")
    length = length if length is not None else (8192 if heatmap or fit else 512)
    if not 2 <= length <= LONGEST:
        raise BadInput(f"--length is {length}: from 2 to {LONGEST:,} distances are possible")
    built = [scheme(spec, heads, head_width).to(device) for spec in specs or registry()]
    report: dict[str, Any] = {"heads": heads, "head_width": head_width, "schemes": [_row(one) for one in built]}
    if fit or plot is not None:
        like = torch.empty(0, device=device, dtype=dtype)
        biases = [(one, bias_by_distance(one, length, like)) for one in _with_bias(built, like, explicit=bool(specs))]
        if fit:
            report["fits"] = _fits(biases, head or heads)
        if plot is not None:
            _draw(biases, plot, heatmap, head or (heads if heatmap or fit else None), log, report.get("fits", []))
            report["plot"] = str(plot)
    _print(report, as_json)


def _with_bias(built: list[Any], like: Any, explicit: bool) -> list[Any]:
    """The schemes that have something to draw; one that was asked for by name must."""
    from fieldlens.core.errors import BadInput
    from fieldlens.kernels.attention import bias_table

    shown = [one for one in built if one.window or bias_table(one, 1, like) is not None]
    if explicit and len(shown) < len(built):
        blank = next(one for one in built if one not in shown)
        raise BadInput(f"'{blank.spec}' adds no bias to scores: there is nothing to draw")
    return shown


def _row(scheme: Any) -> dict[str, Any]:
    """What the listing says of one scheme."""
    from fieldlens.schemes.spec import options

    keys = {
        key: {"default": found.default, "choices": _choices(found.annotation)}
        for key, found in options(type(scheme)).items()
    }
    return {
        "spec": scheme.spec,
        "label": scheme.label,
        "kind": "relative" if scheme.relative else "absolute",
        "learned_parameters": sum(parameter.numel() for parameter in scheme.parameters()),
        "options": keys,
        "source": scheme.source,
        "formula": " ".join((type(scheme).__doc__ or "").split()),
    }


def _choices(annotation: Any) -> list[Any] | None:
    from typing import Literal, get_args, get_origin

    return list(get_args(annotation)) if get_origin(annotation) is Literal else None


def _fits(biases: list[tuple[Any, Any]], head: int) -> list[dict[str, Any]]:
    """Our least squares on one head of each scheme, the paper's constants for Sandwich beside it."""
    from fieldlens.core.errors import BadInput
    from fieldlens.schemes.sandwich import ratios
    from fieldlens.schemes.smoothed import PRINTED, log_fit

    rows = []
    for one, bias_HN in biases:
        seen_N = bias_HN[head - 1].isfinite().nonzero()[:, 0]
        if len(seen_N) < 2:
            raise BadInput(f"'{one.spec}' sees {len(seen_N)} distance: a curve needs at least 2")
        slope, constant = log_fit(seen_N, bias_HN[head - 1, seen_N])
        row: dict[str, Any] = {"spec": one.spec, "head": head, "slope": slope, "constant": constant}
        if one.name == "sandwich" and one.dims == 128:
            stretch = 8 / float(ratios(one.heads)[head - 1])
            row["paper"] = {"slope": PRINTED[0] * stretch, "constant": PRINTED[1] * stretch}
        rows.append(row)
    return rows


def _draw(
    biases: list[tuple[Any, Any]], plot: Path, heatmap: bool, head: int | None, log: bool, fits: list[dict[str, Any]]
) -> None:
    from fieldlens.reporting import plots as draw

    if head is None:
        figure = draw.panels_of_heads(biases, log)
    elif heatmap:
        figure = draw.matrices(biases, head)
    else:
        curves = [draw.Fit(row["slope"], row["constant"], f"ours: {_curve(row)}") for row in fits]
        curves += [draw.Fit(**row["paper"], label=f"paper: {_curve(row['paper'])}") for row in fits if "paper" in row]
        figure = draw.one_head(biases, head, log, curves)
    draw.save(figure, plot)


def _curve(fit: dict[str, float]) -> str:
    return f"{fit['slope']:.4f}·log(1 + Δ) {'+' if fit['constant'] >= 0 else '-'} {abs(fit['constant']):.4f}"


def _print(report: dict[str, Any], as_json: bool) -> None:
    if as_json:
        print(json.dumps(report, indent=2))
        return
    screen = console()
    for row in report["schemes"]:
        learned = f"{row['learned_parameters']} learned parameters" if row["learned_parameters"] else "nothing learned"
        screen.print(f"[bold]{row['spec']}[/bold]  {row['label']}, {row['kind']}, {learned}. {row['source']}")
        keys = "  ".join(_option(key, **about) for key, about in row["options"].items())
        screen.print(f"    options: {keys}", style="dim")
    for row in report.get("fits", []):
        screen.print(f"{row['spec']}, head {row['head']}: {_curve(row)}")
        if "paper" in row:
            screen.print(f"{' ' * len(row['spec'])}   the paper: {_curve(row['paper'])}")
    if "plot" in report:
        print(f"drawn: {report['plot']}")


def _option(key: str, default: Any, choices: list[Any] | None) -> str:
    from fieldlens.schemes.spec import spell

    values = choices and "|".join(str(choice) for choice in sorted(choices, key=lambda choice: choice != default))
    return f"{key}={values or ('…' if default is None else spell(default))}"
