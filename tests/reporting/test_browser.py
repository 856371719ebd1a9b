"""The blocks of a report in a real browser: no errors, no network, readable at every width, safe with hostile text."""

import re
from collections.abc import Sequence
from typing import Any

import pytest
from browsing import Open

from fieldlens.reporting import blocks as report
from fieldlens.reporting.blocks import Axis, Block, Card, Mark, Series


def chart(series: Sequence[Series], x: Axis | None = None, y: Axis | None = None, **more: Any) -> Block:
    return report.Chart("Chart", x or Axis("x"), y or Axis("y"), series, **more)


def line(name: str = "a", points: int = 11, slope: float = 2, **more: Any) -> Series:
    """y = slope·x at x = 0, 1, …"""
    return Series(name, range(points), [slope * x for x in range(points)], more.pop("colour", "#0072B2"), **more)


def plot(page: Any) -> Any:
    return page.locator(".plot svg[role=img]").first


def wait(page: Any, expression: str) -> None:
    """Wait until an expression is true; polled here, because the page's policy forbids foreign functions."""
    for _ in range(200):
        if page.evaluate(expression):
            return
        page.wait_for_timeout(25)
    raise AssertionError(f"never: {expression}")


def tip(page: Any) -> str:
    """The text of the tooltip, with cells separated by spaces."""
    return " ".join(page.locator(".tip").inner_text().split())


def ticks(page: Any, anchor: str = "middle") -> list[str]:
    """The labels of the x axis, or of the y axis, which end at it."""
    return page.locator(f".plot text.tick[text-anchor={anchor}]").all_text_contents()


def everything() -> list[Block]:
    """One block of every kind."""
    lines = [
        Series(f"model {n}", range(1, 2049), [min(1, x / 900 / n) for x in range(1, 2049)], colour, "o")
        for n, colour in ((1, "#0072B2"), (2, "#000000"))
    ]
    texts = {f"text {n}": [report.Text(["It was a bright cold day in April. " * 20])] for n in (1, 2)}
    marks = [Mark(1024, "the training length of model 1"), Mark(1100, "the training length of model 2")]
    marks += [Mark(0.99, "99 %", "y"), Mark(0.98, "98 %", "y")]
    tokens, shares = (
        Axis("tokens", log=True, toggle=True, format="tokens"),
        Axis("share", format="percent", low=0, high=1),
    )
    columns = ["model", *[f"a long column name {n}" for n in range(12)]]
    return [
        report.Text(["Some **bold** words, and `code --with=options`, and more, so that a line breaks on a phone."]),
        report.Cards([*[Card("1,411", "tokens for 99 %", "1,326 – 1,509", "#0072B2")] * 8]),
        report.Note("warning", ["Careful."]),
        report.Heading("Charts"),
        chart(lines, tokens, shares, marks=marks, caption="A caption."),
        report.DataTable(
            columns, [["m" * 30, *["1234.5"] * 12]], "Table", ["A note."], {"Markdown": "|", "LaTeX": "&"}
        ),
        report.Tabs("Tabs", texts),
        report.Code("a very long line of code " * 20, "Code"),
        report.Details("Details", [report.Text(["Hidden."]), chart(lines)]),
    ]


@pytest.mark.parametrize("width", [360, 1200])
@pytest.mark.parametrize("theme", ["light", "dark"])
def test_quiet_and_as_wide_as_the_window(show: Open, theme: str, width: int) -> None:
    page = show(*everything(), viewport={"width": width, "height": 800}, color_scheme=theme)
    assert page.evaluate("document.documentElement.dataset.theme") == theme
    page.locator("summary").click()
    plot(page).hover()
    assert page.locator(".tip").is_visible()
    assert page.evaluate("document.documentElement.scrollWidth") == width
    box = page.locator(".tip").bounding_box()
    assert box["x"] >= 0
    assert box["x"] + box["width"] <= width
    assert page.locator(".plot svg[role=img]").last.bounding_box()["width"] > width / 2


def luminance(page: Any, selector: str, style: str) -> float:
    colour = page.locator(selector).first.evaluate(f"node => getComputedStyle(node).{style}")
    red, green, blue = (int(channel) / 255 for channel in re.findall(r"\d+", colour)[:3])
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def test_the_button_changes_the_theme_and_black_turns_light(show: Open) -> None:
    page = show(chart([line(colour="#000000")]), color_scheme="light")
    assert luminance(page, ".plot .line", "stroke") == 0
    page.get_by_role("button", name="Dark colours").click()
    assert luminance(page, "body", "backgroundColor") < 0.1
    assert luminance(page, "body", "color") > 0.8
    assert luminance(page, ".plot .line", "stroke") > 0.8
    page.get_by_role("button", name="Light colours").click()
    assert luminance(page, "body", "backgroundColor") == pytest.approx(1)
    page.emulate_media(color_scheme="dark")  # a choice once made stays
    assert page.evaluate("document.documentElement.dataset.theme") == "light"


def test_the_theme_follows_the_system(show: Open) -> None:
    page = show(color_scheme="light")
    page.emulate_media(color_scheme="dark")
    wait(page, "document.documentElement.dataset.theme === 'dark'")


def test_hover_reads_the_lines(show: Open) -> None:
    band = {"low": [x - 0.5 for x in range(11)], "high": [x + 1.25 for x in range(11)]}
    sparse = Series("sparse", [0, 10], [None, 0.125], "#D55E00")
    page = show(chart([line("steep"), line("flat", slope=1, **band), sparse], Axis("step")))
    axis = page.locator(".plot line.axis").first.bounding_box()
    page.mouse.move(axis["x"] + 0.41 * axis["width"], axis["y"] - 40)
    assert tip(page) == "4 step steep 8 flat 4 3.500 – 5.250 sparse – at 0"
    assert page.locator(".pointer circle").count() == 2
    page.mouse.move(axis["x"] + axis["width"] + 5, axis["y"] - 40)
    assert tip(page) == "10 step steep 20 flat 10 9.500 – 11.25 sparse 0.1250"
    page.mouse.move(5, 5)
    assert not page.locator(".tip").is_visible()
    assert page.locator(".pointer *").count() == 0


def test_readings_have_the_format_of_the_axis(show: Open) -> None:
    shares = Series("a", [1, 2048], [0.00012344, 0.5], "#0072B2")
    page = show(chart([shares], Axis("tokens", format="tokens"), Axis("share", format="percent")))
    plot(page).press("Home")
    assert tip(page) == "1 tokens a 0.01234%"
    plot(page).press("End")
    assert tip(page) == "2,048 tokens a 50.00%"
    assert "50%" in ticks(page, "end")


def test_arrows_read_the_lines(show: Open) -> None:
    page = show(chart([line()], Axis("step")))
    page.keyboard.press("Tab")  # the theme
    page.keyboard.press("Tab")  # the legend
    page.keyboard.press("Tab")
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowRight")
    assert tip(page) == "1 step a 2"
    page.keyboard.press("End")
    page.keyboard.press("ArrowLeft")
    assert tip(page) == "9 step a 18"
    page.keyboard.press("Escape")
    assert not page.locator(".tip").is_visible()
    page.keyboard.press("ArrowLeft")
    assert tip(page) == "10 step a 20"
    page.keyboard.press("Tab")
    assert not page.locator(".tip").is_visible()


def test_a_tap_keeps_the_tooltip_until_the_next(show: Open) -> None:
    page = show(chart([line()]), viewport={"width": 360, "height": 740}, has_touch=True)
    plot(page).tap()
    assert tip(page) == "5 x a 10"
    page.locator("h1").tap()
    assert not page.locator(".tip").is_visible()


def test_the_legend_hides_lines(show: Open) -> None:
    page = show(chart([line("alone"), line("b, 50 %", group="b"), line("b, 99 %", slope=100, group="b", dash=True)]))
    legend = page.locator(".legend button")
    assert legend.all_inner_texts() == ["alone", "b"]
    assert "1,000" in ticks(page, "end")
    assert page.locator(".plot .line").count() == 3
    legend.nth(1).click()
    assert page.locator(".plot .line").count() == 1
    assert [legend.nth(n).get_attribute("aria-pressed") for n in (0, 1)] == ["true", "false"]
    assert ticks(page, "end")[-1] == "20"  # the axis follows what is seen
    plot(page).press("End")
    assert tip(page) == "10 x alone 20"
    legend.nth(0).click()
    assert page.locator(".plot .line").count() == 0
    legend.nth(1).press("Enter")
    assert page.locator(".plot .line").count() == 2


def test_switches_redraw(show: Open) -> None:
    points = Series("a", [0, 1, 10, 1000], [-1, 0, 1, 100], "#0072B2", "o")
    page = show(chart([points], Axis("x", toggle=True), Axis("y", toggle=True)))
    assert page.locator(".plot .marker").count() == 4
    straight = ticks(page)
    assert straight[:2] == ["0", "100"]
    x, y = page.get_by_role("group", name="x axis"), page.get_by_role("group", name="y axis")
    x.get_by_role("button", name="log").click()
    assert ticks(page) == ["1", "10", "100", "1,000"]
    assert page.locator(".plot .marker").count() == 3
    y.get_by_role("button", name="log").click()
    assert page.locator(".plot .marker").count() == 2
    assert page.locator(".plot .line").get_attribute("d").count("L") == 1
    assert ticks(page, "end") == ["1", "10", "100"]
    assert x.get_by_role("button", name="log").get_attribute("aria-pressed") == "true"
    plot(page).press("Home")
    assert tip(page) == "1 x a 0"  # not drawn, but readable
    x.get_by_role("button", name="linear").click()
    y.get_by_role("button", name="linear").click()
    assert ticks(page) == straight


def test_tokens_are_ticked_in_powers_of_two(show: Open) -> None:
    page = show(chart([line(points=4097)], Axis("x", format="tokens", toggle=True)))
    assert ticks(page) == ["0", "512", "1,024", "1,536", "2,048", "2,560", "3,072", "3,584", "4,096"]
    page.get_by_role("button", name="log").click()
    assert ticks(page) == ["1", "2", "4", "8", "16", "32", "64", "128", "256", "512", "1,024", "2,048", "4,096"]
    page.set_viewport_size({"width": 360, "height": 740})
    wait(page, "document.querySelectorAll('.plot text.tick').length < 14")
    assert ticks(page) == ["1", "8", "64", "512", "4,096"]


def test_what_is_missing_breaks_the_line(show: Open) -> None:
    gaps = Series("a", range(7), [1, 2, None, 4, None, 6, 7], "#0072B2", low=[0] * 7, high=[1, 1, 1, None, 1, 1, 1])
    page = show(chart([gaps]))
    assert page.locator(".plot .line").get_attribute("d").count("M") == 3
    assert page.locator(".plot .line").get_attribute("d").count("h0") == 1  # a lone point is a dot
    assert page.locator(".plot .band").get_attribute("d").count("M") == 2


def test_many_points_are_thinned_but_read_exactly(show: Open) -> None:
    values = [0.5] * 20_000
    values[12_345], values[4_321] = 9.75, -9.75
    page = show(chart([Series("a", range(20_000), values, "#0072B2", "o", low=values, high=values)]))
    corners = [
        float(point.split()[1]) for point in re.split("[ML]", page.locator(".plot .line").get_attribute("d"))[1:]
    ]
    assert len(corners) <= 802
    middle = corners[0]
    assert max(corners) - middle > 150  # both spikes are still there
    assert middle - min(corners) > 150
    assert page.locator(".plot .marker").count() == 0
    page.evaluate("""() => {
      const svg = document.querySelector(".plot svg[role=img]");
      const press = (key) => svg.dispatchEvent(new KeyboardEvent("keydown", { key }));
      press("Home");
      for (let step = 0; step < 12; step += 1) press("PageDown");
      for (let step = 0; step < 345; step += 1) press("ArrowRight");
    }""")
    assert tip(page) == "12,345 x a 9.750 9.750 – 9.750"


def test_markers_are_shapes(show: Open) -> None:
    signs = "os^vDPX*hpd<>"
    page = show(chart([line(sign, points=3, slope=n, marker=sign) for n, sign in enumerate(signs)]))
    assert page.locator(".plot .marker").count() == 3 * len(signs)
    outlines = page.locator(".sample .marker").evaluate_all("nodes => nodes.map((node) => node.getAttribute('points'))")
    assert len(set(outlines)) == len(signs)


@pytest.mark.parametrize("width", [360, 1200])
def test_labels_of_marks_do_not_touch(show: Open, width: int) -> None:
    marks = [Mark(at, f"training length of model {at}") for at in (7, 8, 9)] + [Mark(11, "beyond")]
    marks += [Mark(at, f"level {at}", "y") for at in (10, 10.3)]
    page = show(chart([line()], marks=marks), viewport={"width": width, "height": 800})
    assert page.locator(".plot line.mark").count() == 5
    boxes = [label.bounding_box() for label in page.locator(".plot text.label").all()]
    assert len(boxes) == 5
    for index, box in enumerate(boxes):
        assert box["x"] + box["width"] <= width
        for other in boxes[:index]:
            apart = box["x"] > other["x"] + other["width"] or other["x"] > box["x"] + box["width"]
            assert apart or abs(box["y"] - other["y"]) > 11


def test_charts_follow_the_width(show: Open) -> None:
    page = show(chart([line()]))
    assert plot(page).get_attribute("viewBox").startswith("0 0 1136 ")
    page.set_viewport_size({"width": 500, "height": 800})
    wait(page, "document.querySelector('.plot svg').getAttribute('viewBox').startsWith('0 0 468 ')")


def test_charts_are_described(show: Open) -> None:
    page = show(chart([line("one"), line("two")], Axis("steps"), Axis("loss")))
    assert page.get_by_role("img", name=re.compile("Chart.*loss by steps.*one, two")).count() == 1


def test_tabs(show: Open) -> None:
    page = show(report.Tabs("Tabs", {name: [report.Text([f"pane {name}"]), chart([line(name)])] for name in "abc"}))

    def visible() -> list[str]:
        return [name for name in "abc" if page.get_by_text(f"pane {name}").is_visible()]

    assert visible() == ["a"]
    page.get_by_role("tab", name="b").click()
    assert visible() == ["b"]
    assert page.get_by_role("tab", name="b").get_attribute("aria-selected") == "true"
    page.get_by_role("tabpanel").locator(".plot .line").wait_for()  # drawn once it is seen
    assert page.get_by_role("tabpanel").locator(".plot .line").count() == 1
    for key, then in (("ArrowRight", "c"), ("ArrowRight", "a"), ("ArrowLeft", "c"), ("Home", "a"), ("End", "c")):
        page.keyboard.press(key)
        assert visible() == [then]
    page.keyboard.press("Tab")  # leaves the tabs: only the chosen one is a stop
    assert page.evaluate("document.activeElement.getAttribute('role')") != "tab"


@pytest.mark.parametrize("way", ["clipboard", "fallback"])
def test_copy_buttons(show: Open, way: str) -> None:
    hide = "Object.defineProperty(navigator, 'clipboard', { value: undefined });" if way == "fallback" else ""
    page = show(
        report.DataTable(["a"], [["b"]], copies={"Markdown": "| a |\n| b |\n", "LaTeX": "a \\\\"}),
        report.Code("run --this\n  now <b>"),
        before=f"window.board = navigator.clipboard; {hide}",
        permissions=["clipboard-read", "clipboard-write"],
    )
    copies = {"Copy Markdown": "| a |\n| b |\n", "Copy LaTeX": "a \\\\", "Copy": "run --this\n  now <b>"}
    for label, text in copies.items():
        button = page.get_by_role("button", name=label, exact=True)
        button.click()
        page.get_by_role("button", name="Copied").first.wait_for()
        assert page.evaluate("board.readText()") == text
        button.wait_for()  # the label comes back
    assert page.locator("textarea").count() == 0


def test_bold_and_code(show: Open) -> None:
    page = show(report.Text(["a **bold** word, `code **plain**`, 2 ** 3 ** 4, **`", "* p, ** q, *** r"]))
    assert page.locator(".text strong").all_inner_texts() == ["bold"]
    assert page.locator(".text code").all_inner_texts() == ["code **plain**"]
    texts = page.locator(".text p").all_text_contents()
    assert texts == ["a bold word, code **plain**, 2 ** 3 ** 4, **`", "* p, ** q, *** r"]


HOSTILE = [
    "<script>window.hacked=1</script>",
    "</script><script>window.hacked=1</script>",
    "<img src=x onerror=window.hacked=1>",
    "\"'><svg onload=window.hacked=1>",
    "javascript:window.hacked=1",
    "url(javascript:window.hacked=1);background:red",
    "{{script}}${window.hacked=1}",
    "url(#123456",
    "__proto__",
    "\u202e\x00\ufeff\ud800",
]


@pytest.mark.parametrize("text", HOSTILE)
def test_hostile_text_is_only_text(show: Open, text: str) -> None:
    lines = [
        Series(text, [1, 2], [3, 4], text, text, [2, 3], [4, 5], group=text),
        Series(f"{text} 2", [1, 2], [5, 6], text, text),
    ]
    inner = [
        report.Heading(text),
        report.Text([text]),
        report.Note("info", [text]),
        report.Cards([Card(text, text, text, text)]),
        report.Chart(text, Axis(text, toggle=True), Axis(text), lines, [Mark(1, text), Mark(4, text, "y")], text),
        report.DataTable([text, text], [[text, text]], text, [text], {text: text}),
        report.Code(text, text),
    ]
    blocks = [
        *inner,
        report.Tabs(text, {text: [report.Text(["other"])], f"{text} 2": inner}),
        report.Details(text, inner),
    ]
    page = show(*blocks, title=text, permissions=["clipboard-read", "clipboard-write"])
    page.locator(".copy").first.click()
    page.get_by_role("group", name="x axis").first.get_by_role("button", name="log").click()
    page.get_by_role("tab").nth(1).click()
    page.locator("summary").click()
    plot(page).press("End")
    assert page.locator(".tip th span").first.evaluate("node => node.textContent") == text
    title = text.encode("utf-8", "backslashreplace").decode() if "\ud800" in text else text
    assert page.evaluate("window.hacked") is None
    assert page.evaluate("({}).hacked") is None
    texts = page.evaluate("""() => {
      const places = ["main > h2", ".text p", ".note p", ".cards dt", ".cards .value", ".cards .detail", ".chart h3",
        ".legend button", ".y-label", ".x-label", ".plot .label title", ".chart figcaption", ".table h3", ".table td",
        ".table thead th", ".table .small", ".code h3", "pre", ".tabs > h3",
        "[role=tab]", "summary", "footer dt", "footer dd"];
      return Object.fromEntries(places.map((place) => [place, document.querySelector(place).textContent]));
    }""")
    lone = text.replace("\ud800", "\ufffd")  # half a pair cannot leave the browser
    assert {place: content for place, content in texts.items() if content not in (text, lone)} == {}
    assert page.title().strip() == " ".join(title.replace("\x00", "\ufffd").split())
    assert page.locator("main script, main img, main iframe, main a").count() == 0
    painted = page.locator(".plot .line").first.evaluate("node => getComputedStyle(node).stroke")
    assert painted == "rgb(102, 102, 102)"  # an invalid colour becomes grey


def test_paper_shows_everything(show: Open) -> None:
    panes = {name: [report.Text([f"pane {name}"]), chart([line(name)])] for name in "ab"}
    page = show(report.Tabs("Tabs", panes), report.Details("Details", [chart([line()])]), color_scheme="dark")
    page.evaluate("dispatchEvent(new Event('beforeprint'))")
    assert page.evaluate("document.documentElement.dataset.theme") == "light"
    assert page.get_by_text("pane b").is_visible()
    assert page.locator(".plot .line").count() == 3
    page.evaluate("dispatchEvent(new Event('afterprint'))")
    assert page.evaluate("document.documentElement.dataset.theme") == "dark"
    assert not page.get_by_text("pane b").is_visible()
    assert page.locator("details[open]").count() == 0
    assert page.pdf().startswith(b"%PDF")


def test_without_scripts_the_page_says_so(show: Open) -> None:
    page = show(chart([line()]), java_script_enabled=False)
    assert page.locator("h1").inner_text() == "Title"
    assert page.locator("noscript").inner_text().startswith("The charts and tables of this report")
