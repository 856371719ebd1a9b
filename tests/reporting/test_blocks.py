"""HTML reports: any text is shown as text, and the page runs only its own script."""

import base64
import hashlib
import json
import re
from html.parser import HTMLParser
from importlib.resources import files
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from fieldlens.reporting import blocks as report
from fieldlens.reporting.blocks import Axis, Card, Mark, Series
from fieldlens.reporting.table import Table

HOSTILE = [
    "</script><script>window.hacked=1</script>",
    "<!-- <script>",
    "]]> --> </style> </title> </textarea>",
    "\"'`&amp;&#60;{{data}}{{script}}",
    "\u2028\u2029\x00\x0b\x1b\x7f\x85\ufeff\ufffe",
    "\ud800 lone \udfff",
    "\udc00\ud800",
]


class Page(HTMLParser):
    """A parsed page: elements with their attributes, and texts by id or tag."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.texts: dict[str, str] = {}
        self.inside = ""
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        self.inside = dict(attrs).get("id") or tag

    def handle_endtag(self, tag: str) -> None:
        self.inside = ""

    def handle_data(self, data: str) -> None:
        self.texts[self.inside] = self.texts.get(self.inside, "") + data

    @property
    def data(self) -> Any:
        def refuse(name: str) -> None:
            raise AssertionError(f"{name} is not JSON")

        return json.loads(self.texts["data"], parse_constant=refuse)


def every_block(text: str) -> list[report.Block]:
    """One block of each kind, with `text` in every place for text."""
    line = Series(text, [1, 2], [0.5, None], text, text, [0.4, None], [0.6, None], group=text)
    blocks = [
        report.Heading(text),
        report.Text([text, text]),
        report.Note("info", [text]),
        report.Note("warning", [text]),
        report.Cards([Card(text, text, text, text), Card(text, text)]),
        report.Chart(text, Axis(text, toggle=True), Axis(text), [line], [Mark(1, text), Mark(0.5, text, "y")], text),
        report.DataTable([text, text], [[text, text]], text, [text], {text: text}),
        report.Code(text, text),
    ]
    return [*blocks, report.Tabs(text, {text: blocks}), report.Details(text, blocks)]


def through_json(value: Any) -> Any:
    """Encode and decode: adjacent halves of a surrogate pair become one character."""
    return json.loads(json.dumps(value))


@settings(deadline=None)
@given(st.text(st.characters()))
@example(HOSTILE[0])
@example(HOSTILE[1])
@example(HOSTILE[3])
@example(HOSTILE[5])
@example(HOSTILE[6])
def test_any_text_comes_back(text: str) -> None:
    blocks = every_block(text)
    page = report.page(text, text, blocks, {text: text})
    page.encode()
    assert Page(page).data == through_json({"blocks": [block.to_json() for block in blocks], "footer": [[text, text]]})


@pytest.mark.parametrize("text", HOSTILE)
def test_a_text_adds_no_element(text: str) -> None:
    harmless, hostile = (Page(report.page(name, name, every_block(name), {name: name})) for name in ("harmless", text))
    assert [tag for tag, _ in hostile.elements] == [tag for tag, _ in harmless.elements]
    expected = text.encode("utf-8", "backslashreplace").decode()
    assert hostile.texts["h1"] == hostile.texts["title"] == expected
    assert not set("<>&\u2028\u2029") & set(hostile.texts["data"])


def test_the_policy_names_the_script_and_the_style() -> None:
    page = report.page("t", "s", every_block("x"), {})
    (policy,) = re.findall(r'<meta http-equiv="Content-Security-Policy" content="([^"]*)">', page)
    rules = dict(rule.split(" ", 1) for rule in policy.split("; "))

    def source(tag: str) -> str:
        (text,) = re.findall(rf"<{tag}>(.*?)</{tag}>", page, re.DOTALL)
        return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"

    assert rules == {
        "default-src": "'none'",
        "script-src": source("script"),
        "style-src": source("style"),
        "img-src": "data:",
        "base-uri": "'none'",
        "form-action": "'none'",
    }
    # The policy must come before what it governs.
    assert page.index("Content-Security-Policy") < page.index("<style>") < page.index("<script")


def test_nothing_comes_from_elsewhere() -> None:
    folder, names = files("fieldlens.reporting"), ("page.html", "style.css", "script.js")
    texts = {name: folder.joinpath(name).read_text("utf-8") for name in names}
    addresses = [address for text in texts.values() for address in re.findall(r"\w+://[^\s\"']*", text)]
    assert addresses == ["http://www.w3.org/2000/svg"]
    assert not re.search(r"@import|url\(|@font-face", texts["style.css"])
    forbidden = (
        r"innerHTML|outerHTML|insertAdjacent|document\.write|eval\(|Function\(|import\(|fetch\(|XMLHttp|\"style\""
    )
    assert not re.search(forbidden, texts["script.js"])
    assert not re.search(r"</?script|<!--", texts["script.js"])
    assert not re.search(r"\bon\w+=|\bstyle=", texts["page.html"])
    for tag, attributes in Page(report.page("t", "s", [], {})).elements:
        assert not {"src", "srcset", "action"} & set(attributes), tag
        assert attributes.get("href", "data:,") == "data:,"


def test_nan_and_inf_are_null() -> None:
    nan, inf = float("nan"), float("inf")
    line = Series("a", [3, 1, nan, 2], [nan, 0.1, 5, None], "#000000", low=[inf, -inf, 5, 0], high=[1, 2, 5, 3])
    block = report.Chart("t", Axis("x", low=nan), Axis("y", high=inf), [line], [Mark(nan, "m")])
    blocks = Page(report.page("t", "s", [block], {})).data["blocks"]
    (series,) = blocks[0]["series"]
    assert (series["x"], series["y"]) == ([1, 2, 3], [0.1, None, None])  # in the order of x
    assert (series["low"], series["high"]) == ([None, 0, None], [2, 3, 1])
    assert blocks[0]["x"]["low"] is blocks[0]["y"]["high"] is blocks[0]["marks"][0]["at"] is None


def test_numbers_keep_seven_digits() -> None:
    block = report.Chart("t", Axis("x"), Axis("y"), [Series("a", [1.0, 2048.0], [1 / 3, 1e300], "#000000")]).to_json()
    assert block["series"][0]["x"] == [1, 2048]
    assert block["series"][0]["y"] == [0.3333333, 1e300]
    assert all(isinstance(x, int) for x in block["series"][0]["x"])


def test_columns_of_numbers_are_detected() -> None:
    columns = {
        "name": ["a", "b"],
        "number": ["1,024", "not reached"],
        "unit": ["5.2 tok/s", "12 tokens"],
        "sign": ["< 0.001", "–"],
        "word": ["yes", "no"],
        "version": ["2.10.1, CPU, float32", "0.1.0 (commit 3f2a9c1)"],
    }
    block = report.DataTable(list(columns), list(zip(*columns.values(), strict=True))).to_json()
    assert [name for name, numeric in zip(columns, block["numeric"], strict=True) if numeric] == [
        "number",
        "unit",
        "sign",
    ]


def test_lengths_must_match() -> None:
    with pytest.raises(AssertionError):
        report.Chart("t", Axis("x"), Axis("y"), [Series("a", [1, 2], [1], "#000000")]).to_json()
    with pytest.raises(AssertionError):
        report.DataTable(["a", "b"], [["1"]]).to_json()


def test_an_empty_page_is_small() -> None:
    assert len(report.page("", "", [], {}).encode()) < 60_000


def test_columns_of_numbers_with_a_word_can_be_aligned_like_the_others() -> None:
    rows = [["stock", "48.37 undecided", "88.62 breaks"], ["yarn", "42.21 undecided", "42.97 breaks"]]
    table = Table(["method", "128", "256"], rows)
    assert report.DataTable(table.columns, table.rows).to_json()["numeric"] == [False, False, True]
    assert report.DataTable(table.columns, table.rows, right=table.right).to_json()["numeric"] == [False, True, True]
