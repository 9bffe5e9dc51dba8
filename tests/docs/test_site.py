"""The site: every public name is in the reference, every method in the gallery, nothing comes from a network."""

import ast
import importlib
import re
import shutil
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

import fedacg
from fedacg.config.methods import BASELINES, METHODS, MODIFIERS
from support.browser import launched

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PACKAGES = ("fedacg", "fedacg.data", "fedacg.methods", "fedacg.models", "fedacg.flower")


def referenced() -> set[str]:
    """What the pages of the API reference show."""
    pages = (page.read_text(encoding="utf-8") for page in (DOCS / "api").glob("*.md"))
    return {name for page in pages for name in re.findall(r"^::: (\S+)$", page, re.MULTILINE)}


def announced() -> set[str]:
    """What the packages say that they offer; packages themselves are pages."""
    names = {f"{package}.{name}" for package in PACKAGES for name in importlib.import_module(package).__all__}
    return names - set(PACKAGES)


def taught() -> set[str]:
    """What the guides, examples and tutorials import, or use as an attribute of `fedacg`."""
    guides = [page.read_text(encoding="utf-8") for page in DOCS.rglob("*.md")]
    blocks = [block for page in guides for block in re.findall(r"^```python\n(.*?)^```$", page, re.M | re.S)]
    blocks += [path.read_text(encoding="utf-8") for path in (ROOT / "examples").rglob("*.py")]
    found = set()
    for block in blocks:
        for node in ast.walk(ast.parse(block)):
            if isinstance(node, ast.ImportFrom) and str(node.module).startswith("fedacg"):
                found |= {f"{node.module}.{alias.name}" for alias in node.names}
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "fedacg":
                found.add(f"fedacg.{node.attr}")
    return found - set(PACKAGES)


def home(name: str) -> object:
    """The thing that a dotted name leads to, so that two names of one thing are the same."""
    module, _, attribute = name.rpartition(".")
    return getattr(importlib.import_module(module), attribute)


@pytest.mark.parametrize("names", [announced, taught])
def test_every_public_name_is_in_the_reference(names) -> None:
    shown = referenced()
    things = {id(home(name)) for name in shown}
    assert sorted(name for name in names() if name not in shown and id(home(name)) not in things) == []


def test_every_name_in_the_reference_exists_and_has_a_docstring() -> None:
    for name in referenced():
        thing = home(name)
        if callable(thing) or isinstance(thing, ModuleType):
            assert (thing.__doc__ or "").strip(), name


def test_a_missing_name_would_be_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fedacg, "__all__", [*fedacg.__all__, "Undocumented"])
    assert "fedacg.Undocumented" in announced() - referenced()


@pytest.fixture
def tools(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(DOCS / "_tools")
    monkeypatch.syspath_prepend(ROOT / "benchmarks")


@pytest.mark.usefixtures("tools")
def test_the_gallery_has_a_page_with_a_picture_for_every_method_and_part() -> None:
    gallery = importlib.import_module("gallery")
    pages = gallery.pages()
    assert len(pages) == len(METHODS) + len(BASELINES) + len(MODIFIERS)
    for uri, page in pages.items():
        name = Path(uri).stem
        owner = MODIFIERS[name] if "parts/" in uri else METHODS.get(name) or BASELINES[name]
        assert owner.equation in page
        assert all(f"| `{option}` | {spec.default:g} |" in page for option, spec in owner.options.items())
        assert not owner.link or f"]({owner.link})" in page
        assert name in BASELINES or "<svg" in page, uri


NOT_FIGURES = {
    "docs/images/architecture.svg": "drawn by hand: boxes and arrows, no numbers",
    "docs/images/page.png": "a screenshot, taken by docs/_tools/screenshot.py",
}
"""Pictures that `make figures` does not make, with the reason."""


@pytest.mark.usefixtures("tools")
def test_every_picture_of_the_documents_is_made_by_one_command_from_committed_numbers() -> None:
    figures = set(importlib.import_module("figures").FIGURES)
    used = set()
    for page in (*ROOT.glob("*.md"), *DOCS.rglob("*.md"), *(ROOT / "examples").rglob("*.md")):
        for target in re.findall(r"!\[[^\]]*\]\(([^)]+)\)", page.read_text(encoding="utf-8")):
            used.add(str((page.parent / target).resolve().relative_to(ROOT)))
    assert used == figures | set(NOT_FIGURES)
    assert all((ROOT / name).exists() for name in used)


@pytest.mark.usefixtures("tools")
def test_every_figure_can_be_drawn_from_the_numbers_that_are_committed(monkeypatch: pytest.MonkeyPatch) -> None:
    written = []
    monkeypatch.setattr(importlib.import_module("plots"), "render", lambda *_, **__: b"")
    monkeypatch.setattr(Path, "write_bytes", lambda path, _: written.append(path))
    figures = importlib.import_module("figures").FIGURES
    for draw in figures.values():
        draw()
    assert written == [ROOT / name for name in figures]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site, built strictly."""
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)]
    built = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert built.returncode == 0, built.stdout + built.stderr
    return folder


@pytest.mark.slow
@pytest.mark.parametrize(("width", "scheme", "palette"), [(1280, "light", "default"), (390, "dark", "slate")])
def test_the_site_asks_no_network_and_no_page_is_wider_than_the_window(
    site: Path, tmp_path: Path, width: int, scheme: str, palette: str
) -> None:
    pages = ("index", "start", "methods", "methods/fedacg", "methods/parts/acg", "api/methods", "results/index")
    with launched(tmp_path) as browser:
        browser.media(prefers_color_scheme=scheme)
        browser.resize(width, 900)
        for page in pages:
            browser.open(site / f"{page}.html")
            assert browser.js("document.documentElement.scrollWidth") <= width, page
            assert browser.js("document.body.dataset.mdColorScheme") == palette
        schemes = {address.partition(":")[0] for address in browser.requests()}
        assert schemes <= {"file", "data", "chrome", "chrome-untrusted"}, "the page, or the browser itself"
        assert browser.complaints() == []


@pytest.mark.slow
def test_search_works_from_the_disk(site: Path, tmp_path: Path) -> None:
    from selenium.webdriver.support.ui import WebDriverWait

    with launched(tmp_path) as browser:
        browser.resize(1280, 900)
        browser.open(site / "methods" / "fedacg.html")
        browser.one("input.md-search__input").click()
        browser.keys("lookahead")
        found = "document.querySelector('.md-search-result__meta').textContent"
        WebDriverWait(browser.driver, 20).until(lambda _: "matching documents" in browser.js(found))
        assert int(browser.js(found).split()[0]) > 3


@pytest.mark.slow
def test_a_broken_link_an_anchor_or_a_page_without_a_place_ends_the_build(tmp_path: Path) -> None:
    """`make docs` itself, on a copy with three mistakes: with --quiet mkdocs would not count them."""
    copy = tmp_path / "copy"
    copy.mkdir()
    needed = ("docs", "src", "examples", "benchmarks", "tests", ".ci")
    for name in (path.name for path in ROOT.iterdir() if path.is_file() or path.name in needed):
        place = ROOT / name
        (shutil.copytree if place.is_dir() else shutil.copy2)(place, copy / name)
    with (copy / "docs" / "faq.md").open("a", encoding="utf-8") as page:
        page.write("\n[gone](gone.md) and [nowhere](start.md#nowhere)\n")
    (copy / "docs" / "stray.md").write_text("# Stray\n", encoding="utf-8")
    environment = Path(sys.executable).parents[1]
    command = ["make", "docs", f"VENV={environment}", "-o", f"{environment}/.installed-dev"]
    built = subprocess.run(command, cwd=copy, capture_output=True, text=True, check=False)
    assert built.returncode != 0
    said = built.stdout + built.stderr
    assert "contains a link 'gone.md'" in said
    assert "does not contain an anchor '#nowhere'" in said
    assert "stray.md" in said
