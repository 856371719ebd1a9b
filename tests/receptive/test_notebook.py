"""`fieldlens.explore`: the explorer in the output of a notebook's cell, with the numbers of `receptive_field`."""

import base64
import html
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from newcomer import save_model

import fieldlens
from fieldlens.core.errors import BadInput
from fieldlens.models.adapters.base import ModelAdapter

TEXT = (
    "def look(back):\n    return back + 1\n\nhow far back does it really look? <script>window.hacked = 1</script> look"
)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> ModelAdapter:
    return fieldlens.load_model(save_model(tmp_path_factory.mktemp("notebook") / "mistral"))


def data(document: str) -> Any:
    (text,) = re.findall(r'<script type="application/json" id="data">(.*?)</script>', document, re.DOTALL)
    return json.loads(text)["blocks"][0]


def test_shares_are_those_of_the_receptive_field(model: ModelAdapter) -> None:
    exploration = fieldlens.explore(model, TEXT, targets=5)
    field = fieldlens.receptive_field(model, TEXT)
    last = data(exploration.document)["targets"][0]
    low, high = last["range"]
    steps_T = np.frombuffer(base64.b64decode(last["shares"]), "<u2").astype(float)
    shares_T = np.where(steps_T > 0, np.exp(low + (steps_T - 1) / 65534 * (high - low)), 0)
    np.testing.assert_allclose(shares_T, field.shares(), rtol=3e-4)
    assert last["marks"] == [field.erf(level) for level in (0.5, 0.9, 0.99)]
    assert last["at"] == field.length
    assert len(data(exploration.document)["targets"]) == exploration.targets == 5
    assert repr(exploration) == f"Exploration(mistral, {field.length + 1} tokens, 5 targets)"


def test_a_path_and_a_name_are_accepted(model: ModelAdapter, tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text(TEXT)
    folder = save_model(tmp_path / "mistral")
    exploration = fieldlens.explore(folder, tmp_path / "text.txt", targets=2)
    exploration.save(tmp_path / "page.html")
    assert (tmp_path / "page.html").read_text() == exploration.document
    assert exploration.targets == 2


def test_a_text_shorter_than_the_number_of_targets(model: ModelAdapter) -> None:
    exploration = fieldlens.explore(model, "one two three", targets=50)
    assert 1 <= exploration.targets < exploration.tokens


def test_bad_input(model: ModelAdapter) -> None:
    with pytest.raises(BadInput, match="explore needs a model with its tokenizer"):
        fieldlens.explore(lambda ids: ids, TEXT)
    with pytest.raises(BadInput, match="targets must be an integer of at least 1, got 0"):
        fieldlens.explore(model, TEXT, targets=0)
    with pytest.raises(BadInput, match="at least 3 are needed"):
        fieldlens.explore(model, "a")
    with pytest.raises(BadInput, match="target"):
        fieldlens.explore(model, TEXT, target="loss")  # type: ignore[arg-type]


def test_the_output_of_a_cell_in_a_browser(model: ModelAdapter, browser: Any, tmp_path: Path) -> None:
    """In a sandboxed frame, without an address of its own: it answers keys, and says and asks for nothing."""
    cell = fieldlens.explore(model, TEXT, targets=4)._repr_html_()
    (tmp_path / "notebook.html").write_text(f"<!doctype html><title>notebook</title>{cell}", encoding="utf-8")
    assert html.unescape(cell).count("<iframe") == 1
    context = browser.new_context()
    page = context.new_page()
    messages: list[str] = []
    page.on("console", lambda message: messages.append(message.text))
    page.on("pageerror", lambda error: messages.append(str(error)))
    requests: list[str] = []
    page.on("request", lambda request: requests.append(request.url))
    page.goto((tmp_path / "notebook.html").as_uri())
    frame = page.frame_locator("iframe")
    counter = frame.locator(".explorer .count").first
    assert counter.inner_text() == "target 1 of 4"
    frame.get_by_role("button", name="Next target").click()
    page.wait_for_timeout(300)  # longer than a page with an address waits before it remembers its state
    assert counter.inner_text() == "target 2 of 4"
    assert frame.get_by_role("button", name="Copy link").count() == 0
    assert page.evaluate("window.hacked") is None
    assert messages == []
    assert [url for url in requests if not url.startswith("about:")] == [(tmp_path / "notebook.html").as_uri()]
    context.close()


def test_a_notebook_without_a_screen(browser: Any, tmp_path: Path) -> None:
    """A real kernel executes the cell, and the saved notebook shows the explorer."""
    pytest.importorskip("nbconvert")
    pytest.importorskip("ipykernel")
    save_model(tmp_path / "mistral")
    source = f"import fieldlens\nfieldlens.explore('mistral', {TEXT!r}, targets=4)"
    cell = {"cell_type": "code", "execution_count": None, "metadata": {}, "outputs": [], "source": source}
    kernel = {"name": "python3", "display_name": "Python 3", "language": "python"}
    notebook = {"cells": [cell], "metadata": {"kernelspec": kernel}, "nbformat": 4, "nbformat_minor": 4}
    (tmp_path / "notebook.ipynb").write_text(json.dumps(notebook))
    words = [sys.executable, "-m", "nbconvert", "--to", "html", "--execute", "notebook.ipynb"]
    subprocess.run(words, cwd=tmp_path, check=True, capture_output=True, timeout=600)
    context = browser.new_context()
    page = context.new_page()
    page.route(re.compile("^https?:"), lambda route: route.abort())  # nbconvert's own page asks for scripts
    page.goto((tmp_path / "notebook.html").as_uri(), wait_until="domcontentloaded")
    frame = page.frame_locator("iframe")
    assert frame.locator(".explorer .count").first.inner_text() == "target 1 of 4"
    frame.get_by_role("button", name="Next target").click()
    assert frame.locator(".explorer .count").first.inner_text() == "target 2 of 4"
    context.close()
