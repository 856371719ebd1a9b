"""The site: no dead link, every page in the menu, references that are complete, a build without warnings."""

import importlib.util
import re
from pathlib import Path
from types import ModuleType

import pytest

import fieldlens
from fieldlens.cli import app
from fieldlens.paper.artifact import registry

ROOT = Path(__file__).parent.parent
LINK = re.compile(r"\]\(([^)\s]+)\)")


@pytest.fixture(scope="module")
def builder() -> ModuleType:
    spec = importlib.util.spec_from_file_location("site_builder", ROOT / "docs" / "build.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def site(builder: ModuleType, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[str]]:
    """What the builder reads, and its menu."""
    folder = tmp_path_factory.mktemp("site")
    return folder / "docs", builder.stage(folder)


@pytest.fixture
def staged(site: tuple[Path, list[str]]) -> Path:
    return site[0]


def anchors(page: Path) -> set[str]:
    """What headings become in addresses."""
    headings = [line.lstrip("# ") for line in page.read_text().splitlines() if re.match(r"#+ ", line)]
    return {re.sub(r"[\s-]+", "-", re.sub(r"[^\w\s-]", "", text).strip().lower()) for text in headings}


def dead(page: Path) -> list[str]:
    """Links of a page that lead nowhere; code is no link."""
    text = re.sub(r"^```.*?^```$|`[^`\n]*`(?!\]\()", "", page.read_text(), flags=re.DOTALL | re.MULTILINE)
    found = []
    for link in LINK.findall(text):
        if link.startswith(("http:", "https:")):
            continue
        place, _, anchor = link.partition("#")
        target = page if not place else page.parent / place
        if not target.exists() or (anchor and anchor not in anchors(target)):
            found.append(link)
    return found


def test_no_link_of_the_site_is_dead(staged: Path) -> None:
    pages = sorted(staged.glob("*.md"))
    assert len(pages) >= 12
    assert {page.name: dead(page) for page in pages if dead(page)} == {}


@pytest.mark.parametrize("name", ["README.md", "CONTRIBUTING.md", "CHANGELOG.md"])
def test_no_link_of_the_repository_is_dead(name: str) -> None:
    assert dead(ROOT / name) == []


def test_a_dead_link_is_found(tmp_path: Path) -> None:
    page = tmp_path / "a.md"
    page.write_text("# A heading: of words\n[x](a.md#a-heading-of-words) [y](b.md) [z](#nowhere) `[code](c.md)`\n")
    assert dead(page) == ["b.md", "#nowhere"]


def test_every_page_is_in_the_menu(site: tuple[Path, list[str]]) -> None:
    staged, menu = site
    assert set(menu) == {page.name for page in staged.glob("*.md")}
    assert menu[0] == "index.md"


def test_the_references_name_every_verb_and_every_public_name(staged: Path) -> None:
    verbs = (staged / "commands.md").read_text()
    for verb in (name for name in app if not name.startswith("-")):
        assert f"\n## fieldlens {verb}\n" in verbs
    names = (staged / "api.md").read_text()
    for name in fieldlens.__all__:
        assert name.startswith("_") or f"\n## fieldlens.{name}\n" in names


def test_a_signature_fits_its_box(staged: Path) -> None:
    blocks = re.findall(r"^```python\n(.*?)^```$", (staged / "api.md").read_text(), re.DOTALL | re.MULTILINE)
    assert len(blocks) > 20
    for line in "".join(blocks).splitlines():
        assert len(line) <= 88
        assert " at 0x" not in line


def test_what_torch_says_of_its_own_methods_is_left_out(staged: Path) -> None:
    assert "extra_repr" not in (staged / "api.md").read_text()


def test_the_stars_of_a_pattern_are_no_emphasis(staged: Path) -> None:
    assert "`'*-stdlib-1235-*'`" in (staged / "commands.md").read_text()


def test_every_benchmark_has_its_tables(staged: Path) -> None:
    text = (staged / "performance.md").read_text()
    for file in (ROOT / "benchmarks").glob("*.json"):
        section = text.split(f"\n## {file.stem}\n")[1].split("\n## ")[0]
        assert f"python benchmarks/{file.stem}.py" in section
        assert section.count("|---") >= 1


@pytest.mark.parametrize(("page", "option"), [("results", ""), ("results-first", " --study paper-first")])
def test_every_table_and_figure_of_the_paper_is_shown(staged: Path, page: str, option: str) -> None:
    text = (staged / f"{page}.md").read_text()
    for name, artifact in registry().items():
        section = text.split(f"\n## {artifact.title}\n")[1].split("\n## ")[0]
        assert f"`fieldlens paper {name}{option}`" in section
        assert "](drawn/" in section or "|---" in section.replace("-:", "-")
    for file in re.findall(r"\]\((drawn/[^)]+)\)", text):
        assert (staged / file).exists()


def test_it_builds_without_warnings(builder: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("zensical", reason="needs the extra: pip install 'fieldlens[docs]'")
    builder.build(tmp_path / "site")
    assert "site: " in capsys.readouterr().out
    pages = {page.stem for page in (tmp_path / "site").glob("*.html")} - {"404"}
    assert {"index", "measure", "commands", "api", "performance"} <= pages
    for page in (tmp_path / "site").glob("*.html"):
        for link in re.findall(r'href="([^"#:]+\.html)(?:#[^"]*)?"', page.read_text()):
            assert (page.parent / link).exists() or link.startswith("/"), (page.name, link)
