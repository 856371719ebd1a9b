"""The explorer in a report: exact numbers in, the same numbers under the cursor, by mouse and by keys."""

import base64
import csv
import io
import json
import re
from typing import Any

import numpy as np
import pytest
import torch
from browsing import Open

from fieldlens import Config, Decoder, receptive_field
from fieldlens.receptive import report as receptive_report
from fieldlens.receptive.explorer.block import Explorer, ServedExplorer
from fieldlens.receptive.explorer.data import EMBEDDED, Target, Texts, embed, encode, marks, quantise
from fieldlens.receptive.field import ReceptiveField
from fieldlens.receptive.result import Measurement
from fieldlens.reporting import blocks as report

LENGTH = 40
WORDS = [f" w{n}" if n % 9 else f"w{n}\n" for n in range(120)]


def shares(seed: int, length: int = LENGTH) -> np.ndarray:
    values = np.random.default_rng(seed).random(length) ** 4
    return values / values.sum()


def target(document: int, offset: int, seed: int, layer: int = 0) -> Target:
    return Target(document, offset, WORDS[offset - LENGTH : offset + 1], shares(seed), layer)


def about(name: str = "small", **more: Any) -> dict[str, Any]:
    curve = {"tokens": [1, 4, 16, LENGTH], "share": [0.2, 0.5, 0.75, 1.0]}
    return {"name": name, "colour": "#0072B2", "train_length": 32, "curve": curve, "losses": None, **more}


def example(**more: Any) -> Explorer:
    """Two targets in one text, the first also at two layers, and one in another text; a second model has one."""
    first = [target(0, 50, 1), target(0, 60, 2), target(3, 45, 3), target(0, 50, 4, 1), target(0, 50, 5, 2)]
    data = embed([(about(**more), first), (about("large"), [target(0, 60, 6)])], "log-likelihood")
    assert data is not None
    return Explorer(data)


# ---- Data


@pytest.mark.parametrize("low", [1e-3, 1e-9, 1e-300])
def test_quantised_shares_are_accurate(low: float) -> None:
    exact_T = np.geomspace(low, 0.9, 999)
    exact_T[7] = 0
    (first, last), steps_T = quantise(exact_T)
    read_T = np.where(steps_T > 0, np.exp(first + (steps_T.astype(float) - 1) / 65534 * (last - first)), 0)
    assert read_T[7] == 0
    large_T = exact_T >= 1e-12
    assert not read_T[~large_T].any()
    np.testing.assert_allclose(read_T[large_T], exact_T[large_T], rtol=2.2e-4)
    assert quantise(np.full(5, 0.2))[1].tolist() == [1] * 5
    assert quantise(np.zeros(3))[1].tolist() == [0] * 3


def test_marks_are_those_of_the_receptive_field() -> None:
    torch.manual_seed(0)
    field = receptive_field(Decoder(Config(layers=2, width=32, heads=4, vocab_size=97)), torch.randint(97, (31,)))
    assert marks(field.shares(), 30) == [field.erf(level) for level in (0.5, 0.9, 0.99)]


def test_targets_of_one_passage_share_their_text() -> None:
    texts = Texts()
    targets = [target(0, 60, 1), target(0, 50, 2), target(1, 50, 3), target(0, 115, 4)]
    texts.add(targets)
    assert [(document, start, len(tokens)) for document, start, tokens in texts.stretches] == [
        (0, 10, 51),
        (0, 75, 41),
        (1, 10, 41),
    ]
    assert [texts.place(one) for one in targets] == [(0, 50), (0, 40), (2, 40), (1, 40)]
    data = texts.to_json()
    ids = np.frombuffer(base64.b64decode(data["texts"][0]), "<u2")
    assert [data["pieces"][index] for index in ids] == WORDS[10:61]


def test_a_text_of_many_distinct_tokens() -> None:
    texts = Texts()
    texts.add([Target(0, 70_000, [f"{n}" for n in range(70_001)], np.full(70_000, 1 / 70_000))])
    assert texts.to_json()["bytes"] == 4


def test_the_share_of_a_bos_is_apart() -> None:
    row = Target(0, 3, ["a", "b", "c", "d"], np.array([0.4, 0.1, 0.2, 0.3])).to_json()
    assert row["bos"] == 0.4
    assert row["marks"] == [3, 3, 3]
    assert len(base64.b64decode(row["shares"])) == 2 * 3


def test_models_share_the_room() -> None:
    count = EMBEDDED // 2048
    targets = [Target(n, 2048, ["a"] * 2049, np.full(2048, 1 / 2048)) for n in range(2 * count)]
    alone, both = embed([(about(), targets)], "top-logit"), embed([(about(), targets)] * 2, "top-logit")
    assert alone is not None
    assert both is not None
    assert len(alone["targets"]) == count
    assert [row["model"] for row in both["targets"]] == [0] * (count // 2) + [1] * (count // 2)
    assert embed([(about(), [])], "top-logit") is None


def test_bytes_are_little_endian() -> None:
    assert base64.b64decode(encode(np.array([1, 258], ">u2"))) == b"\x01\x00\x02\x01"


def test_a_report_of_fifty_targets_is_below_a_megabyte() -> None:
    rng = np.random.default_rng(0)
    words = [f" {bytes(rng.integers(97, 123, rng.integers(2, 9)).tolist()).decode()}" for _ in range(9000)]
    norms_NT = rng.random((50, 2048)) ** 6
    field = ReceptiveField(norms_NT, name="m", train_length=1024)
    tokens = [[words[int(n)] for n in (rng.pareto(0.6, 2049) * 5) % 9000] for _ in range(50)]
    targets = [Target(n, 2048, tokens[n], field.segments()[n]) for n in range(50)]
    targets += [Target(0, 2048, tokens[0], field.segments()[n], n + 1) for n in range(24)]
    about = {
        "model": {"name": "m", "scheme": None}, "data": {"corpus": "c"}, "theoretical": None,
        "asked": {"segments": 50, "length": 2048, "target": "log-likelihood"}, "versions": {"fieldlens": "0"},
    }  # fmt: skip
    layers = {n + 1: field.segments()[n] for n in range(12)}
    page = receptive_report.page([Measurement(about, field, layers, targets=targets)], "fieldlens measure m")
    assert len(page.encode()) < 1_000_000
    embedded = json.loads(re.search(r'id="data">(.*?)</script>', page, re.DOTALL)[1])  # type: ignore[index]
    explorer = next(block for block in embedded["blocks"] if block["kind"] == "explorer")
    assert sum(not row["layer"] for row in explorer["targets"]) == 50


# ---- In the browser


def reading(page: Any) -> str:
    return page.locator(".explorer-reading").inner_text()


def title(page: Any) -> str:
    return " ".join(page.locator(".explorer-title").inner_text().split())


def token(page: Any, position: int) -> Any:
    """The element of a token; lines in view are in order."""
    return page.locator(".explorer-text .t").and_(page.get_by_text(visible(position), exact=True)).first


def visible(position: int) -> str:
    return WORDS[10 + position].replace("\n", "↵").strip()


def percent(text: str, name: str) -> float:
    return float(re.search(rf"{name} ([\d.]+) %", text)[1]) / 100  # type: ignore[index]


def test_the_cursor_reads_shares(show: Open) -> None:
    page = show(example())
    assert title(page) == "target 1 of 3 w50"
    exact_T = shares(1)
    for position in (39, 30, 12):
        token(page, position).hover()
        text = reading(page)
        assert text.startswith(f"“{visible(position)}”: {40 - position} token")
        assert percent(text, "share") == pytest.approx(exact_T[position], rel=0.006)
        assert percent(text, "hold") == pytest.approx(exact_T[position:].sum(), rel=0.006)
    assert page.locator(".explorer-curve .spot").count() == 1  # the same cursor in the curve
    assert page.locator(".needle").is_visible()  # and in the strip
    token(page, 40).hover()
    assert reading(page).endswith("the target.")
    depths = page.locator(".explorer-text .t").evaluate_all(
        "nodes => nodes.map((node) => [node.position, Number(node.style.getPropertyValue('--depth'))])"
    )
    shown = {position: depth for position, depth in depths if position < 40}
    expected_T = np.log1p(1000 * exact_T / exact_T.max()) / np.log1p(1000)
    assert shown == pytest.approx({position: expected_T[position] for position in shown}, abs=2e-3)
    assert len(shown) == 40


def test_a_target_under_the_cursor_is_shown_until_one_is_pinned(show: Open) -> None:
    page = show(example())
    token(page, 50).hover()
    assert title(page) == "target 2 of 3 w60"
    page.mouse.move(5, 5)
    assert title(page) == "target 2 of 3 w60"  # it stays when the cursor leaves
    token(page, 40).click()
    assert title(page) == "target 1 of 3 w50"
    token(page, 50).hover()
    assert title(page) == "target 1 of 3 w50"
    assert reading(page).endswith("after the target, not seen by the model.")
    page.get_by_role("button", name="Pinned").click()
    token(page, 49).hover()
    token(page, 50).hover()
    assert title(page) == "target 2 of 3 w60"


def test_marks_are_in_text_strip_and_numbers(show: Open) -> None:
    page = show(example())
    expected = marks(shares(1), LENGTH)
    assert page.locator(".explorer-marks dd").all_inner_texts() == [str(count) for count in expected]
    placed = page.locator(".explorer-text .mark").evaluate_all(
        "nodes => Object.fromEntries(nodes.map((node) => [40 - node.position, node.dataset.mark]))"
    )
    first, *others = expected
    assert len(set(others)) == 1  # marks that coincide are named together
    assert placed == {str(first): "50 %", str(others[0]): "90, 99 %"}
    value = page.get_by_role("slider", name="Target").get_attribute("aria-valuetext")
    assert value.startswith("Target 1 of 3: “w50”. 50 % in the last")


def test_keys_move_target_cursor_and_window(show: Open) -> None:
    page = show(example())
    strip = page.get_by_role("slider", name="Target")
    for key, expected in (("ArrowRight", 2), ("End", 3), ("ArrowRight", 3), ("ArrowLeft", 2), ("Home", 1)):
        strip.press(key)
        assert title(page).startswith(f"target {expected} of 3")
        assert strip.get_attribute("aria-valuenow") == str(expected)
    said = page.locator("[aria-live]")
    page.wait_for_timeout(250)
    assert said.inner_text().startswith("Target 1 of 3: “w50”. 50 % in the last")
    text = page.locator(".explorer-text")
    text.press("ArrowLeft")
    assert reading(page).startswith("“w49”: 1 token back")
    text.press("Home")
    assert reading(page).startswith("“w10”: 40 tokens back")
    text.press("ArrowDown")
    text.press("End")
    text.press("Enter")
    assert title(page) == "target 2 of 3 w60"
    window = page.get_by_role("slider", name="Window")
    window.press("Home")
    for key, expected in (("PageUp", 2), ("PageUp", 4), ("ArrowRight", 5), ("PageDown", 2), ("End", 40)):
        window.press(key)
        assert window.get_attribute("aria-valuenow") == str(expected)
    page.get_by_role("button", name="Next target").click()
    assert title(page) == "target 3 of 3 w45↵"


def test_a_tiny_cut_is_not_called_nothing(show: Open) -> None:
    shares_T = np.full(40, 1 / 40)
    shares_T[0] = 1e-6
    data = embed([(about(), [Target(0, 50, WORDS[10:51], shares_T / shares_T.sum())])], "log-likelihood")
    assert data is not None
    page = show(Explorer(data))
    window = page.get_by_role("slider", name="Window")
    window.press("End")
    window.press("ArrowLeft")
    text = page.locator(".explorer-cut p").first.inner_text()
    assert text.startswith("Keep the last 39 tokens: over 99.99 % of this gradient is kept, 0.00010")


def test_the_window_is_dragged(show: Open) -> None:
    losses = {"contexts": [[4, 5.0], [16, 4.0], [40, 3.0]], "windows": [[8, 4.5]], "targets": 200}
    page = show(example(losses=losses))
    plot = page.locator(".explorer-plot").bounding_box()
    left, width = plot["x"] + 38, plot["width"] - 38 - 12
    page.mouse.move(left + width, plot["y"] + 60)
    page.mouse.down()
    for count in (30, 16):
        page.mouse.move(left + width * np.log(count) / np.log(40), plot["y"] + 60)
    page.mouse.up()
    kept, loss = page.locator(".explorer-cut p").all_inner_texts()
    assert kept.startswith("Keep the last 16 tokens: ")
    assert percent(kept, "tokens:") == pytest.approx(shares(1)[-16:].sum(), rel=0.006)
    # cut at 4 tokens: 0.5 of the mean gradient and 2 nats; at 16 tokens: 0.25, so 1 nat
    assert loss == (
        "Mean loss over 200 targets: predicted 4.000, measured 4.000 with a context of 16, 4.500 with a sliding window "
        "of 8; full context 3.000 nats."
    )
    assert page.locator(".explorer-text .cut").count() == 24
    page.mouse.move(left + 3, plot["y"] + 60)
    assert page.get_by_role("slider", name="Window").get_attribute("aria-valuenow") == "16"  # released


def test_switches_and_the_address(show: Open) -> None:
    page = show(example())
    page.get_by_label("Layer").select_option("layer 2")
    page.get_by_role("slider", name="Window").press("End")
    page.get_by_role("slider", name="Window").press("PageDown")
    page.wait_for_timeout(300)
    assert set(page.evaluate("location.hash.slice(1)").split("&")) == {"target=0.40", "layer=2", "window=20"}
    token(page, 39).hover()
    assert percent(reading(page), "share") == pytest.approx(shares(5)[39], rel=0.006)
    page.reload()
    assert page.get_by_label("Layer").input_value() == "2"
    assert page.get_by_role("slider", name="Window").get_attribute("aria-valuenow") == "20"
    page.get_by_label("Model").select_option("large")
    assert title(page) == "target 1 of 1 w60"
    assert page.get_by_label("Layer").count() == 0
    page.wait_for_timeout(300)
    assert "model=1" in page.evaluate("location.hash")
    page.evaluate("location.hash = '#target=1.40&model=0&window=7'")
    page.wait_for_timeout(50)
    assert title(page) == "target 3 of 3 w45↵"


@pytest.mark.parametrize(
    "hash", ["#target=99.1", "#target=0.1&model=7", "#model=-1&layer=x&window=1e9", "#%&=&target=%E0"]
)
def test_an_address_that_names_nothing_opens_the_first_target(show: Open, hash: str) -> None:
    page = show(example())
    page.goto(page.url.split("#")[0] + hash)
    page.reload()
    assert title(page).startswith("target 1 of 3")


def test_copies(show: Open) -> None:
    page = show(example(), permissions=["clipboard-read", "clipboard-write"])
    page.get_by_role("button", name="Copy as CSV").click()
    page.get_by_role("button", name="Copied").wait_for()
    rows = list(csv.DictReader(io.StringIO(page.evaluate("navigator.clipboard.readText()"))))
    assert [json.loads(row["token"]) for row in rows] == WORDS[10:50]
    np.testing.assert_allclose([float(row["share"]) for row in rows], shares(1), rtol=1e-3)
    np.testing.assert_allclose([float(row["cumulative"]) for row in rows], np.cumsum(shares(1)[::-1])[::-1], rtol=1e-3)
    page.get_by_role("button", name="Next target").click()
    page.get_by_role("button", name="Copy as CSV").wait_for()  # the label comes back
    page.get_by_role("button", name="Copy link").click()
    page.get_by_role("button", name="Copied").wait_for()
    link = page.evaluate("navigator.clipboard.readText()")
    page.goto(link)
    page.reload()
    assert title(page) == "target 2 of 3 w60"


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [390, 1200])
def test_readable_at_every_width(show: Open, width: int, scheme: str) -> None:
    page = show(example(), viewport={"width": width, "height": 800}, color_scheme=scheme)
    assert page.evaluate("document.documentElement.scrollWidth") == width
    text, plot = (page.locator(name).bounding_box() for name in (".explorer-text", ".explorer-plot"))
    assert (plot["y"] > text["y"] + text["height"]) == (width == 390)
    edges = page.locator(".explorer-text .t").evaluate_all("nodes => nodes.map((n) => n.getBoundingClientRect().right)")
    assert max(edges) <= text["x"] + text["width"]
    page.set_viewport_size({"width": 700, "height": 800})
    page.wait_for_timeout(100)
    assert title(page).startswith("target 1 of 3")
    painted = page.locator("canvas").evaluate(
        "canvas => canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height).data.some((byte) => byte)"
    )
    assert painted


def test_sixteen_thousand_tokens_are_a_few_elements(show: Open) -> None:
    words = [f" word{n}" if n % 50 else " end.\n" for n in range(16_385)]
    data = embed([(about(), [Target(0, 16_384, words, shares(1, 16_384))])], "log-likelihood")
    page = show(Explorer(data or {}))
    text = page.locator(".explorer-text")
    assert page.locator(".explorer-text .t").count() < 1200
    assert page.locator(".explorer-text .target").inner_text() == " word16384"
    text.press("Home")
    assert reading(page).startswith("“end.↵”: 16,384 tokens back")
    page.get_by_text("word1", exact=True).wait_for(state="visible")
    text.press("PageDown")
    page.locator(".explorer-strip").click()  # in its middle
    page.get_by_text("word8193", exact=True).wait_for(state="visible")
    assert page.locator(".explorer-text .t").count() < 1200


HOSTILE = [
    "<img src=x onerror=window.hacked=1>",
    "</script><script>window.hacked=1</script>",
    "\u202e\x00\ufeff\x1b[31m",
    "=HYPERLINK(1)",
    '"],"x":["',
    "\ud800",
    "__proto__",
    "",
    "a" * 5000,
]


def test_hostile_tokens_and_names_are_only_text(show: Open) -> None:
    tokens = [HOSTILE[n % len(HOSTILE)] for n in range(41)]
    targets = [Target(0, 40, tokens, shares(1)), Target(1, 40, [*tokens[:40], HOSTILE[0]], shares(2))]
    names = [HOSTILE[0], HOSTILE[1]]
    data = embed([(about(name, colour=name), targets) for name in names], HOSTILE[0])
    page = show(
        Explorer(data or {}), permissions=["clipboard-read", "clipboard-write"], viewport={"width": 390, "height": 700}
    )
    text = page.locator(".explorer-text")
    text.press("Home")
    for _ in range(10):
        text.press("ArrowRight")
        assert reading(page)
    page.get_by_label("Model").select_option("1")
    page.get_by_role("button", name="Next target").click()
    page.get_by_role("button", name="Copy as CSV").click()
    page.get_by_role("button", name="Copied").wait_for()
    assert page.evaluate("window.hacked") is None
    assert page.locator(".explorer img, .explorer script").count() == 0
    assert page.evaluate("document.documentElement.scrollWidth") == 390
    assert "<img src=x onerror=window.hacked=1>" in page.locator(".explorer-title").inner_text()


def test_a_page_without_an_explorer_has_no_trace_of_it() -> None:
    assert "explorer" not in report.page("t", "t", [report.Heading("h")], {})
    assert "connect-src" not in report.policy([example()])
    assert "connect-src 'self'" in report.policy([ServedExplorer({})])


def test_indentation_is_kept(show: Open) -> None:
    """A token of a line break and spaces: the spaces are drawn where they are read, before the next line."""
    tokens = ["if", " x", ":", "\n    ", "return", " 1", "\n", "else"] * 5 + ["end"]
    data = embed([(about(), [Target(0, 40, tokens, shares(1))])], "log-likelihood")
    page = show(Explorer(data or {}))
    lines = page.locator(".explorer-text .line").evaluate_all("nodes => nodes.map((node) => node.textContent)")
    assert lines[:3] == ["if x:↵", "    return 1↵", "elseif x:↵"]
    first, inner = (page.locator(".explorer-text .t").nth(n).bounding_box()["x"] for n in (0, 4))
    assert inner > first + 10
    page.locator(".explorer-text").press("Home")
    for _ in range(4):
        page.locator(".explorer-text").press("ArrowRight")
    assert page.locator(".explorer-text .cursor").inner_text() == "return"
