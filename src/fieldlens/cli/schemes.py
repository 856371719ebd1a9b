"""fieldlens schemes: lists the positional schemes and plots their biases."""

import json
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter
from rich.markup import escape

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
    text: Path | None = None,
    model: str | None = None,
    layer: int = 1,
    as_json: Annotated[bool, Parameter(name="--json")] = False,
    machine: Annotated[Machine, Parameter(name="*")] = Machine(),  # noqa: B008
) -> None:
    """List the positional schemes, or plot their biases.

    Example: fieldlens schemes sandwich alibi:shift=2 --plot bias.png

    Parameters
    ----------
    specs
        Specs such as sandwich:dims=64 or none:window=40; a layer pattern such as 3*rotary/none is expanded to
        its schemes. Default: all schemes.
    plot
        File for a plot of bias against distance (.png, .svg, .pdf).
    heatmap
        Plot the bias matrix of one head instead, with queries as rows and keys as columns.
    fit
        Fit a logarithmic curve to one head by least squares, and plot it beside the paper's.
    head
        Head to plot, counted from 1; the curves of all specs share one panel. Default: a panel
        per scheme with one line per head; for --heatmap and --fit, the last head.
    heads
        Number of attention heads.
    head_width
        Head dimension (head_dim).
    length
        Number of distances to plot. Default: 512, or 8192 for --heatmap and --fit, as in the paper.
    log
        Use a logarithmic distance axis.
    text
        Instead of the bias by distance, plot what the schemes add to the attention scores of a text: the first
        --length tokens (default 32) of this file. Schemes that depend on content are possible, too. Without --model,
        the layer is untrained, and every byte is a token.
    model
        Run or model folder of fieldlens whose scheme is plotted, for --text.
    layer
        Layer of --model, counted from 1.
    as_json
        Print JSON.
    """
    import torch

    from fieldlens.cli.scheme_text import TEXT_LENGTH, TextPlot, draw_on_text
    from fieldlens.core.errors import BadInput
    from fieldlens.reporting.plots import bias_by_distance
    from fieldlens.schemes.discovery import registry
    from fieldlens.schemes.spec import cycle, scheme
    from fieldlens.schemes.validation import check_scheme, scheme_warnings

    device, dtype = machine.start()
    torch.manual_seed(0)  # learned biases are plotted as initialised
    _check_plot(plot, {"--heatmap": heatmap, "--text": text is not None})
    if model is not None and text is None:
        raise BadInput("--model needs a text: add --text FILE")
    if text is not None and plot is not None:
        about = TextPlot(text, plot, specs, model, layer, head, heads, head_width, length or TEXT_LENGTH)
        _print(draw_on_text(about), as_json)
        return
    if head is not None and not 1 <= head <= heads:
        raise BadInput(f"--head must be between 1 and {heads}, the number of heads, got {head}")
    length = length if length is not None else (8192 if heatmap or fit else 512)
    if not 2 <= length <= LONGEST:
        raise BadInput(f"--length must be between 2 and {LONGEST:,}, got {length}")
    entries = dict.fromkeys(entry for spec in specs or registry() for entry in cycle(spec))
    for entry in entries:
        check_scheme(entry, heads, head_width)
        for warning in scheme_warnings(entry, heads, head_width):
            console(stderr=True).print(f"warning: {warning}", markup=False)
    built = [scheme(entry, heads, head_width).to(device) for entry in entries]
    rows = [_row(instance) for instance in built]
    report: dict[str, Any] = {"heads": heads, "head_width": head_width, "schemes": rows}
    if fit or plot is not None:
        like = torch.empty(0, device=device, dtype=dtype)
        _check_memory(len(built), heads, length, heatmap)
        biased = _with_bias(built, like, explicit=bool(specs))
        biases = [(instance, bias_by_distance(instance, length, like)) for instance in biased]
        if fit:
            report["fits"] = _fits(biases, head or heads)
        if plot is not None:
            _draw(biases, plot, heatmap, head or (heads if heatmap or fit else None), log, report.get("fits", []))
            report["plot"] = str(plot)
    _print(report, as_json)


def _check_plot(plot: Path | None, drawing: dict[str, bool]) -> None:
    """Raise BadInput if an option that draws lacks the file, or the file cannot be written."""
    from fieldlens.core.errors import BadInput
    from fieldlens.reporting.plots import check_format
    from fieldlens.storage.writable import check_file

    for option, used in drawing.items():
        if used and plot is None:
            raise BadInput(f"{option} needs an output file: add --plot FILE.png")
    if plot is not None:
        check_format(plot)
        check_file(plot, "--plot")


def _check_memory(count: int, heads: int, length: int, heatmap: bool) -> None:
    """Refuse a plot that does not fit in memory: each bias is held as a table, as lines and as their paths."""
    import torch

    from fieldlens.core.errors import OutOfMemory
    from fieldlens.core.format import format_bytes
    from fieldlens.core.memory import free_memory

    needed, free = (
        8.0 * count * (4 * heads * length + (3 * length**2 if heatmap else 0)),
        free_memory(torch.device("cpu")),
    )
    if needed > free:
        raise OutOfMemory(
            f"{length:,} distances of {count * heads:,} heads need about {format_bytes(needed)}, but only "
            f"{format_bytes(free)} are free: use a smaller --length, fewer --heads or fewer specs"
        )


def _with_bias(built: list[Any], like: Any, explicit: bool) -> list[Any]:
    """The schemes that have a bias to plot; raise BadInput if one that was named explicitly has none."""
    from fieldlens.core.errors import BadInput
    from fieldlens.kernels.attention import bias_table

    biased = [scheme for scheme in built if scheme.window or bias_table(scheme, 1, like) is not None]
    if explicit and len(biased) < len(built):
        unbiased = next(scheme for scheme in built if scheme not in biased)
        if unbiased.takes_input or unbiased.takes_scores:
            raise BadInput(f"what '{unbiased.spec}' adds to scores depends on the text: add --text FILE to plot it")
        raise BadInput(f"'{unbiased.spec}' adds no bias to scores: nothing to plot")
    return biased


def _row(scheme: Any) -> dict[str, Any]:
    """Description of one scheme."""
    from fieldlens.schemes.spec import options, parse

    _, given = parse(scheme.spec)
    keys = {
        key: {
            "default": option.default,
            "choices": _choices(option.annotation),
            **({"given": given[key]} if key in given else {}),
        }
        for key, option in options(type(scheme)).items()
    }
    return {
        "spec": scheme.spec,
        "label": scheme.label,
        "kind": "relative" if scheme.relative else "absolute",
        "exact_with_cache": scheme.exact_with_cache,
        "learned_parameters": sum(parameter.numel() for parameter in scheme.parameters()),
        "options": keys,
        "source": scheme.source,
        "formula": " ".join((type(scheme).__doc__ or "").split()),
    }


def _choices(annotation: Any) -> list[Any] | None:
    from typing import Literal, get_args, get_origin

    return list(get_args(annotation)) if get_origin(annotation) is Literal else None


def _fits(biases: list[tuple[Any, Any]], head: int) -> list[dict[str, Any]]:
    """Least-squares fit of one head of each scheme; for Sandwich, with the constants printed in the paper."""
    from fieldlens.core.errors import BadInput
    from fieldlens.schemes.sandwich import ratios
    from fieldlens.schemes.smoothed import PRINTED, log_fit

    rows = []
    for scheme, bias_HN in biases:
        distances_N = bias_HN[head - 1].isfinite().nonzero()[:, 0]
        if len(distances_N) < 2:
            raise BadInput(
                f"a fit needs at least 2 distances with a finite bias, '{scheme.spec}' has {len(distances_N)}"
            )
        slope, constant = log_fit(distances_N, bias_HN[head - 1, distances_N])
        row: dict[str, Any] = {"spec": scheme.spec, "head": head, "slope": slope, "constant": constant}
        if scheme.name == "sandwich" and scheme.dims == 128:
            scale = 8 / float(ratios(scheme.heads)[head - 1])
            row["paper"] = {"slope": PRINTED[0] * scale, "constant": PRINTED[1] * scale}
        rows.append(row)
    return rows


def _draw(
    biases: list[tuple[Any, Any]], plot: Path, heatmap: bool, head: int | None, log: bool, fits: list[dict[str, Any]]
) -> None:
    from fieldlens.reporting import plots

    if head is None:
        figure = plots.panels_of_heads(biases, log)
    elif heatmap:
        figure = plots.matrices(biases, head)
    else:
        curves = [plots.Fit(row["slope"], row["constant"], f"ours: {_curve(row)}") for row in fits]
        curves += [plots.Fit(**row["paper"], label=f"paper: {_curve(row['paper'])}") for row in fits if "paper" in row]
        figure = plots.one_head(biases, head, log, curves)
    plots.save(figure, plot)


def _curve(fit: dict[str, float]) -> str:
    return f"{fit['slope']:.4f}·log(1 + Δ) {'+' if fit['constant'] >= 0 else '-'} {abs(fit['constant']):.4f}"


def _print(report: dict[str, Any], as_json: bool) -> None:
    if as_json:
        print(json.dumps(report, indent=2))
        return
    screen = console()
    for row in report.get("schemes", []):
        learned = (
            f"{row['learned_parameters']} learned parameters" if row["learned_parameters"] else "no learned parameters"
        )
        label, source = escape(row["label"]), escape(row["source"])
        screen.print(f"[bold]{escape(row['spec'])}[/bold]  {label}, {row['kind']}, {learned}. {source}")
        keys = "  ".join(_option(key, **about) for key, about in row["options"].items())
        screen.print(f"    options: {keys}", style="dim", markup=False)
    for row in report.get("fits", []):
        screen.print(f"{row['spec']}, head {row['head']}: {_curve(row)}", markup=False)
        if "paper" in row:
            screen.print(f"{' ' * len(row['spec'])}   the paper: {_curve(row['paper'])}")
    for panel in report.get("panels", []):
        print(f"{panel['title']}: {panel['lowest']:.3g} to {panel['highest']:.3g}")
    if "plot" in report:
        print(f"plot: {report['plot']}")


def _option(key: str, default: Any, choices: list[Any] | None, **given: Any) -> str:
    """One option in the listing: the value that was given, else the default and the choices."""
    from fieldlens.schemes.spec import spell

    if given:
        return f"{key}={spell(given['given'])} (default {'none' if default is None else spell(default)})"
    values = choices and "|".join(str(choice) for choice in sorted(choices, key=lambda choice: choice != default))
    return f"{key}={values or ('…' if default is None else spell(default))}"
