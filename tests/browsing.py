"""A browser for tests: opens blocks as a page from disk and listens to what it says and asks for."""

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from fieldlens.reporting import blocks as report
from fieldlens.reporting.blocks import Block

ARGUMENTS = [
    "--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update", "--disable-sync",
    "--no-first-run",
]  # fmt: skip

Open = Callable[..., Any]


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    playwright = pytest.importorskip("playwright.sync_api", reason="this needs playwright: pip install playwright")
    names = ("chromium", "chromium-browser", "google-chrome")
    found = os.environ.get("CHROMIUM") or next(filter(None, map(shutil.which, names)), None)
    if found is None:
        pytest.skip("this needs chromium: install it, or name it in CHROMIUM")
    with playwright.sync_playwright() as player:
        chromium = player.chromium.launch(executable_path=found, args=ARGUMENTS)
        yield chromium
        chromium.close()


@pytest.fixture
def show(browser: Any, tmp_path: Path) -> Iterator[Open]:
    """Opens blocks as a page from disk; in the end it must have said nothing and asked for nothing."""
    said: list[str] = []
    asked: list[str] = []
    contexts = []
    path = tmp_path / "report.html"

    def open_page(*blocks: Block, title: str = "Title", before: str = "", **options: Any) -> Any:
        path.write_text(report.page(title, title, blocks, {title: title}), encoding="utf-8")
        context = browser.new_context(**{"viewport": {"width": 1200, "height": 900}, **options})
        contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(10_000)
        page.add_init_script("addEventListener('error', (event) => console.error(event.message))")
        page.add_init_script(before)
        page.on("console", lambda message: said.append(f"{message.type}: {message.text}"))
        page.on("pageerror", lambda error: said.append(str(error)))
        page.on("request", lambda request: asked.append(request.url))
        page.goto(path.as_uri())
        return page

    yield open_page
    for context in contexts:
        context.close()
    assert said == []
    assert set(asked) <= {path.as_uri()}
