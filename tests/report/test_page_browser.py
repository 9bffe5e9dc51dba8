"""The report's page in a real browser: what its script draws, by mouse, by keyboard, on a phone, on paper.

Skipped where there is no browser, which the reason says; `.ci/run` installs one.
"""

import base64
import io
import re
import threading
import time
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from fedacg.report import live, pictures, write
from fedacg.report import page as page_module
from fedacg.report.live import LiveReport, Server
from support.browser import Browser, launched
from support.folders import add_round, fake_run

ROUNDS = 40


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three methods, two of them with two seeds; fedacg learns fastest and sends most."""
    folder = tmp_path_factory.mktemp("page")
    for method, seeds, speed, sent in (
        ("fedavg", 2, 10, 10**6),
        ("fedacg", 2, 5, 3 * 10**6),
        ("moon", 1, 20, 10**6),
    ):
        for seed in range(seeds):
            learnt = [0.9 - seed / 50 - 0.8 * 0.5 ** (n / speed) for n in range(1, ROUNDS + 1)]
            fake_run(folder / "runs" / f"{method}-s{seed}", learnt, method, seed, sent=sent, cohort=(seed, 7))
    write([folder / "runs"], folder / "out", [0.7])
    return folder / "out" / "index.html"


@pytest.fixture(scope="module")
def window(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with launched(tmp_path_factory.mktemp("profile")) as browser:
        yield browser


@pytest.fixture
def browser(window: Browser, page: Path) -> Iterator[Browser]:
    """The page, freshly opened at 1280 pixels; whatever a test does, the console must stay silent."""
    window.media(prefers_color_scheme="light")
    window.resize(1280, 900)
    window.open("about:blank")
    window.requests()
    window.complaints()
    window.open(page)
    window.js("localStorage.clear()")
    yield window
    assert window.complaints() == []


def drawn(browser: Browser) -> list[str]:
    """The labels of the curves in the picture."""
    found: list[str] = browser.js("[...document.querySelectorAll('.plot g.curve')].map(g => g.dataset.label)")
    return found


def words(browser: Browser) -> list[str]:
    """The words around the curves."""
    found: list[str] = browser.js("[...document.querySelectorAll('.plot text')].map(t => t.textContent)")
    return found


def ends(browser: Browser, label: str) -> list[float]:
    """Where a curve's last point lies."""
    path = browser.js(
        "document.querySelector(`.plot g[data-label=${arguments[0]}] .line`).getAttribute('d')", label
    )
    return [float(number) for number in re.split("[ML]", path)[-1].split()]


def choose(browser: Browser, value: str) -> None:
    browser.one(f"label:has(input[value={value}])").click()


def values(browser: Browser) -> dict[str, str]:
    """What the legend says of each curve."""
    items = browser.js("[...document.querySelectorAll('.legend li')].map(i => [i.dataset.label, i.innerText])")
    return {label: text.split()[-1] for label, text in items}


def column(browser: Browser, number: int) -> list[str]:
    cells = "[...document.querySelectorAll('table.sortable tbody tr')].map(r => r.cells[arguments[0]].innerText)"
    found: list[str] = browser.js(cells, number)
    return found


# Opening it


def test_the_page_opens_from_disk_and_asks_for_nothing_else(browser: Browser, page: Path) -> None:
    asked = [address for address in browser.requests() if not address.startswith("data:")]
    assert asked == [page.as_uri()]
    assert drawn(browser) == ["FedAvg", "MOON", "FedACG"], "the bold one above the others"


def test_the_page_forbids_itself_to_ask(browser: Browser) -> None:
    browser.js("fetch('http://127.0.0.1:9/').catch(() => document.title = 'refused')")
    assert wait_for(lambda: browser.driver.title == "refused")
    assert any("Content Security Policy" in complaint for complaint in browser.complaints())
    assert not any(address.startswith("http") for address in browser.requests())


def test_without_a_script_the_table_and_a_picture_are_there(browser: Browser, page: Path) -> None:
    browser.driver.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": True})
    try:
        browser.open(page)
        assert browser.one("noscript img").size["width"] > 500
        assert len(browser.all("table.sortable tbody tr")) == 3
        assert not any(each.is_displayed() for each in browser.all(".scripted"))
    finally:
        browser.driver.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": False})


@pytest.mark.slow
def test_a_page_of_20_runs_of_1000_rounds_is_small_and_draws_every_point(
    browser: Browser, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pictures, "render", lambda figure, kind, dpi=0: b"")
    for number in range(20):
        accuracies = [0.1 + 0.8 * (1 - 0.99 ** (n + 10 * number)) for n in range(1000)]
        cohort = range(number, number + 10)
        fake_run(tmp_path / "runs" / f"{number}", accuracies, f"method-{number}", cohort=cohort)
    write([tmp_path / "runs"], tmp_path / "out")
    path = tmp_path / "out" / "index.html"
    assert path.stat().st_size < 8_000_000
    browser.open(path)
    assert len(drawn(browser)) == 20
    points = "[...document.querySelectorAll('.plot .line')].map(p => p.getAttribute('d').split(/[ML]/).length - 1)"
    assert browser.js(points) == [1000] * 20
    # What it takes on an idle machine is measured by benchmarks/page.py; this is far more.
    assert browser.js("performance.getEntriesByType('navigation')[0].loadEventEnd") < 20_000


# The table


def test_the_table_sorts_by_its_headings(browser: Browser) -> None:
    assert column(browser, 0) == ["FedACG", "FedAvg", "MOON"]
    accuracy, rounds = browser.all("table.sortable thead button")[2:5:2]
    accuracy.click()
    assert column(browser, 0) == ["MOON", "FedAvg", "FedACG"]
    accuracy.click()
    assert column(browser, 0) == ["FedACG", "FedAvg", "MOON"]
    heading = browser.all("table.sortable thead th")[2]
    assert heading.get_attribute("aria-sort") == "descending"
    rounds.click()
    # Whoever has not reached the target comes after those that have.
    assert column(browser, 4)[-1].endswith("+")
    assert column(browser, 0)[0] == "FedACG"
    assert heading.get_attribute("aria-sort") is None


def test_a_row_lights_up_its_curve(browser: Browser) -> None:
    from selenium.webdriver.common.action_chains import ActionChains

    ActionChains(browser.driver).move_to_element(browser.one("tr[data-label=MOON]")).perform()
    assert browser.js("[...document.querySelectorAll('.lit')].map(g => g.dataset.label)") == ["MOON"]
    assert browser.all(".plot.dimmed")


# The curves


def test_a_method_that_is_switched_off_has_no_curve(browser: Browser) -> None:
    browser.one(".legend li[data-label=FedACG] label").click()
    assert drawn(browser) == ["FedAvg", "MOON"]
    browser.one(".legend li[data-label=FedACG] label").click()
    assert sorted(drawn(browser)) == ["FedACG", "FedAvg", "MOON"]


def test_the_axis_switches_between_rounds_bytes_and_time(browser: Browser) -> None:
    assert "rounds" in words(browser)
    assert ends(browser, "FedAvg")[0] == pytest.approx(ends(browser, "FedACG")[0])
    choose(browser, "bytes")
    assert "communicated, MB" in words(browser)
    # fedavg sends a third of what fedacg does; the axis begins left of both.
    left = browser.js("Number(document.querySelector('.grid path').getAttribute('d').match(/M([0-9.]+)/)[1])")
    fedavg, fedacg = (ends(browser, label)[0] - left for label in ("FedAvg", "FedACG"))
    assert fedacg == pytest.approx(3 * fedavg, rel=0.01)
    choose(browser, "seconds")
    assert "seconds" in words(browser)


def test_every_figure_has_its_values_and_its_axis(browser: Browser) -> None:
    final = 0.9 - 0.8 * 0.5 ** (ROUNDS / 20)
    choose(browser, "accuracy")
    assert values(browser)["MOON"] == f"{100 * final:.2f}"
    assert "test accuracy, %" in words(browser)
    assert "70 %" in words(browser)
    choose(browser, "loss")
    assert values(browser)["MOON"] == f"{1 - final:.3f}"
    assert "test loss" in words(browser)
    assert "70 %" not in words(browser)
    choose(browser, "training")
    assert values(browser)["MOON"] == "1.000"


def test_a_logarithmic_axis_gives_equal_ratios_equal_heights(browser: Browser) -> None:
    choose(browser, "loss")
    choose(browser, "log")
    assert "test loss, log" in words(browser)
    heights = dict(
        browser.js(
            "[...document.querySelectorAll('.grid .end')].map(t => [t.textContent, Number(t.getAttribute('y'))])"
        )
    )
    assert heights["0.2"] - heights["0.5"] == pytest.approx((heights["0.1"] - heights["0.2"]) * 1.3219, rel=0.01)


def test_seeds_are_bands_and_a_single_one_is_not(browser: Browser) -> None:
    banded = "[...document.querySelectorAll('.plot .band')].map(p => p.parentElement.dataset.label)"
    assert browser.js(banded) == ["FedAvg", "FedACG"]
    # Seeds lie 2 points apart: ±√2 around their mean.
    edges = browser.js("document.querySelector('g[data-label=FedACG] .band').getAttribute('d')")
    numbers = [[float(n) for n in point.split()] for point in re.split("[ML]", edges.strip("MZ"))]
    width = numbers[ROUNDS][1] - numbers[ROUNDS - 1][1]
    ticks = browser.js(
        "[...document.querySelectorAll('.grid .end')].map(t => [t.textContent, t.getAttribute('y')])"
    )
    (low, at), (high, above) = ((float(text), float(y)) for text, y in ticks[:2])
    a_point = (at - above) / (high - low)
    assert width == pytest.approx(2 * 2**0.5 * a_point, abs=0.3)


def test_the_legend_tells_the_values_under_the_pointer(browser: Browser) -> None:
    from selenium.webdriver.common.action_chains import ActionChains

    end = values(browser)
    plot = browser.one(".plot")
    ActionChains(browser.driver).move_to_element(plot).perform()
    assert re.fullmatch(r"at round (1\d|2\d)", browser.one(".where").text)
    assert float(values(browser)["MOON"]) < float(end["MOON"])
    assert len(browser.all(".cursor circle")) == 3
    ActionChains(browser.driver).move_to_element(browser.one("h1")).perform()
    assert (browser.one(".where").text, values(browser)) == ("at the end", end)


# By keyboard


def tab_to(browser: Browser, selector: str) -> None:
    """Tab until the focus is there."""
    for _ in range(200):
        if browser.js("document.activeElement.matches(arguments[0])", selector):
            return
        browser.keys("TAB")
    pytest.fail(f"{selector}: not reached with the keyboard")


def test_everything_can_be_done_with_the_keyboard(browser: Browser) -> None:
    tab_to(browser, "#theme")
    browser.keys("ENTER")
    assert browser.js("document.documentElement.dataset.theme") == "dark"
    tab_to(browser, "table.sortable th:nth-child(3) button")
    browser.keys("SPACE")
    assert column(browser, 0) == ["MOON", "FedAvg", "FedACG"]
    tab_to(browser, "input[name=figure]")
    browser.keys("ARROW_RIGHT")
    assert "test accuracy, %" in words(browser)
    tab_to(browser, "input[name=axis]")
    browser.keys("ARROW_RIGHT")
    assert "communicated, MB" in words(browser)
    tab_to(browser, ".plot")
    browser.keys("HOME", "ARROW_RIGHT")
    assert browser.one(".where").text.startswith("at ")
    assert browser.one(".plot").get_attribute("aria-valuetext").startswith("at 12.0 MB, FedACG ")
    tab_to(browser, ".legend li[data-label=MOON] input")
    browser.keys("SPACE")
    assert "MOON" not in drawn(browser)
    tab_to(browser, ".heat")
    browser.keys("ARROW_RIGHT", "ARROW_RIGHT")
    assert re.match(r"Client \d+ holds \d+ examples?: ", browser.one(".told").text)
    tab_to(browser, "#attendance .next")
    browser.keys("ENTER")
    assert browser.one("#attendance .span").text == f"rounds 11–20 of {ROUNDS}"
    tab_to(browser, "summary")
    browser.keys("ENTER")
    assert browser.one("details[open] pre").is_displayed()


def test_the_focus_can_be_seen(browser: Browser) -> None:
    for selector in ("#theme", "table.sortable button", ".plot", "pre"):
        tab_to(browser, selector)
        assert browser.js("getComputedStyle(document.activeElement).outlineStyle") == "solid", selector
    for selector in (".choices input", ".legend input"):
        browser.open(browser.driver.current_url)
        tab_to(browser, selector)
        beside = "document.activeElement.parentElement"
        around = f"[{beside}, ...{beside}.querySelectorAll('span')]"
        assert browser.js(f"{around}.some(e => getComputedStyle(e).outlineStyle === 'solid')"), selector


# Participation and reproduction


def test_the_rounds_of_a_client_can_be_listed(browser: Browser) -> None:
    assert browser.all("#attendance select option")[0].text == "FedACG, seed 0, FedAvg, seed 0, MOON"
    field = browser.one("#attendance input")
    field.send_keys("1")
    assert browser.one("#attendance .span").text == "no round with client 1"
    browser.all("#attendance select option")[1].click()
    assert browser.one("#attendance .span").text == f"rounds 1–10 of {ROUNDS} with client 1"
    assert browser.one("#attendance tbody tr:first-child").text.split() == ["1", "2", "1", "7"]


def test_rounds_that_are_left_out_are_told(
    browser: Browser, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(page_module, "VISITS", 20)
    fake_run(tmp_path / "run", [0.5] * 30, cohort=(0, 7))
    write([tmp_path / "run"], tmp_path / "out")
    browser.open(tmp_path / "out" / "index.html")
    assert browser.one("#attendance .span").text == "rounds 1–28 of 10 listed, one in 3"


def test_commands_can_be_copied_where_that_is_allowed_and_are_selected_where_not(browser: Browser) -> None:
    copy = browser.all(".copy")[0]
    browser.js("navigator.clipboard.writeText = (text) => Promise.resolve(window.copied = text)")
    copy.click()
    assert wait_for(lambda: copy.text == "Copied")
    commands = browser.js("window.copied").splitlines()
    assert len(commands) == 5
    assert all(re.fullmatch(r"fedacg run \S+/experiment\.toml", command) for command in commands)
    browser.js("navigator.clipboard.writeText = () => Promise.reject(new Error('no'))")
    browser.js("document.execCommand = () => false")
    copy.click()
    assert wait_for(lambda: copy.text.startswith("Selected"))
    assert browser.js("getSelection().toString()").splitlines() == commands


# Light, dark, narrow, printed


def ground(browser: Browser) -> str:
    found: str = browser.js("getComputedStyle(document.body).backgroundColor")
    return found


def test_light_and_dark_follow_the_system_until_one_is_chosen(browser: Browser) -> None:
    light = ground(browser)
    browser.media(prefers_color_scheme="dark")
    dark = ground(browser)
    assert light == "rgb(255, 255, 255)" != dark
    assert wait_for(lambda: browser.one("#theme").text == "Light")  # the browser tells the script a little later
    browser.one("#theme").click()
    assert ground(browser) == light
    browser.one("#theme").click()
    assert ground(browser) == dark
    browser.media(prefers_color_scheme="light")
    assert ground(browser) == dark


CONTRAST = """
(() => {
  const luminance = (colour) => {
    const parts = colour.match(/[0-9.]+/g).slice(0, 3).map((part) => part / 255);
    const [r, g, b] = parts.map((part) => (part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const ground = luminance(getComputedStyle(document.body).backgroundColor);
  const contrast = (colour) => {
    const one = luminance(colour);
    return (Math.max(one, ground) + 0.05) / (Math.min(one, ground) + 0.05);
  };
  const words = ["body", ".lead", ".caption", "nav a", "thead th", ".where", ".legend label", "dt", ".sd"];
  const probe = document.body.appendChild(document.createElement("i"));
  const palette = [0, 1, 2, 3, 4, 5, 6].map((place) => {
    probe.style.color = `var(--c${place})`;
    return contrast(getComputedStyle(probe).color);
  });
  return [words.map((each) => contrast(getComputedStyle(document.querySelector(each)).color)), palette];
})()
"""


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_words_and_curves_stand_out_from_the_ground(browser: Browser, scheme: str) -> None:
    browser.media(prefers_color_scheme=scheme)
    texts, lines = browser.js(CONTRAST)
    assert min(texts) >= 4.5
    assert min(lines) >= 3


def test_on_a_phone_nothing_is_wider_than_the_screen(browser: Browser, page: Path) -> None:
    browser.resize(390, 844)
    browser.open(page)
    assert browser.js("document.documentElement.scrollWidth") == 390
    outside = """[...document.querySelectorAll('main *')].filter(
        e => !e.closest('.scroll, pre, svg') && e.getBoundingClientRect().right > 390.5
    ).map(e => e.outerHTML.slice(0, 80))"""
    assert browser.js(outside) == []
    browser.one(".legend li[data-label=FedACG] label").click()
    assert drawn(browser) == ["FedAvg", "MOON"]


def test_on_paper_all_is_light_and_there_are_no_controls(browser: Browser) -> None:
    browser.media(prefers_color_scheme="dark")
    browser.one("#theme").click()
    browser.one("#theme").click()
    browser.media("print", prefers_color_scheme="dark")
    assert ground(browser) == "rgb(255, 255, 255)"
    for selector in ("#theme", "nav", ".choices", ".switches", ".copy", ".tools"):
        assert not any(each.is_displayed() for each in browser.all(selector)), selector
    for selector in (
        "h1",
        "table.sortable",
        ".plot svg",
        ".legend",
        ".heat img",
        ".dots",
        ".rounds",
        ".shared",
        "pre",
    ):
        assert browser.all(selector)[0].is_displayed(), selector
    browser.media(prefers_color_scheme="light")


# While a run goes on


def wait_for(condition: Callable[[], Any], seconds: float = 30) -> bool:
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True


def text(browser: Browser, selector: str, place: int = 0) -> str:
    """What an element says, in one step: a live page may replace it between finding and reading it."""
    found: str = browser.js("document.querySelectorAll(arguments[0])[arguments[1]]?.innerText", selector, place)
    return found or ""


def test_a_live_page_keeps_up_and_keeps_what_was_chosen(
    window: Browser, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live, "SOONEST", 0.2)
    monkeypatch.setattr(live, "SHARE", 1.0)
    first = fake_run(tmp_path / "runs" / "a", [0.1, 0.2], "fedavg", finished=False)
    with Server(LiveReport([tmp_path / "runs"]), 0) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            window.open(server.address)
            choose(window, "accuracy")
            window.all("table.sortable thead button")[2].click()
            add_round(first, 3, 0.6)
            assert wait_for(lambda: values(window) == {"FedAvg": "60.00"})
            assert wait_for(lambda: "3 of 100 rounds" in text(window, ".notes"))
            second = fake_run(tmp_path / "runs" / "b", [0.3], "fedacg", finished=False)
            assert wait_for(lambda: drawn(window) == ["FedAvg", "FedACG"])
            assert column(window, 0) == ["FedACG", "FedAvg"]
            window.one(".legend li[data-label=FedAvg] label").click()
            window.js("document.querySelectorAll('summary')[1].click()")
            add_round(second, 2, 0.4)
            assert wait_for(lambda: values(window)["FedACG"] == "40.00")
            assert drawn(window) == ["FedACG"]
            assert wait_for(lambda: "2 / 100 rounds" in text(window, "summary", 1))
            opened = "[...document.querySelectorAll('details[open]')].map(d => d.dataset.run)"
            assert window.js(opened) == ["FedACG"]
            assert text(window, "#live").startswith("live, as of ")
            assert wait_for(lambda: len(window.all(".heat img")) == 1)
        finally:
            server.shutdown()
            thread.join()
    assert wait_for(lambda: text(window, "#live").startswith("not connected"))
    assert drawn(window) == ["FedACG"]
    window.open("about:blank")
    window.complaints()


# Many curves, single seeds, further figures, files


@pytest.fixture
def crowded(window: Browser, tmp_path: Path) -> Browser:
    """A page of nine methods with two seeds each, whose rounds have a score."""
    window.media(prefers_color_scheme="light")
    window.resize(1280, 900)
    methods = ("fedavg", "fedprox", "fedacg", "moon", "feddyn", "fedcm", "fedadam", "fedavgm", "scaffold")
    for place, method in enumerate(methods):
        for seed in range(2):
            run = fake_run(tmp_path / f"{method}-{seed}", [], method, seed)
            for number in range(1, 11):
                accuracy = 0.3 + place / 100 + seed / 50 + number / 100
                add_round(run, number, accuracy, scores={"clients/worst_tenth": accuracy / 2})
    write([tmp_path], tmp_path / "out")
    window.open(tmp_path / "out" / "index.html")
    return window


@pytest.mark.slow
def test_few_curves_have_a_legend_and_no_names(browser: Browser) -> None:
    assert browser.all(".names text") == []


@pytest.mark.slow
def test_names_beside_ends_do_not_overlap_and_the_hero_is_bold(crowded: Browser) -> None:
    boxes = crowded.js(
        "[...document.querySelectorAll('.names text')].map(t => [t.textContent, t.getBoundingClientRect().top,"
        " t.getBoundingClientRect().right, getComputedStyle(t).fontWeight])"
    )
    assert len(boxes) == 9
    tops = sorted(top for _, top, _, _ in boxes)
    assert all(below - above >= 13 for above, below in pairwise(tops))
    plot = crowded.js("document.querySelector('.plot').getBoundingClientRect().right")
    assert all(right <= plot + 1 for _, _, right, _ in boxes)
    assert [name for name, _, _, weight in boxes if weight == "700"] == ["FedACG"]
    widths = dict(
        crowded.js(
            "[...document.querySelectorAll('g.curve')].map(g => [g.dataset.label,"
            " parseFloat(getComputedStyle(g.querySelector('.line')).strokeWidth)])"
        )
    )
    assert widths.pop("FedACG") > max(widths.values())
    crowded.resize(390, 844)
    time.sleep(0.3)
    assert crowded.all(".names text") == [], "there is no room"


@pytest.mark.slow
def test_single_seeds_and_scores_can_be_chosen(crowded: Browser) -> None:
    assert crowded.all(".plot .single") == []
    crowded.one(".singles").click()
    assert len(crowded.all(".plot .single")) == 18
    assert crowded.all(".plot .band") == []
    crowded.js("document.querySelector('input[value=\"clients/worst_tenth\"]').click()")
    assert "clients: worst tenth" in words(crowded)
    assert values(crowded)["SCAFFOLD"] == f"{(0.3 + 0.08 + 0.01 + 0.1) / 2:.3f}"


@pytest.mark.slow
def test_the_curves_can_be_saved_as_they_are_seen(browser: Browser) -> None:
    browser.js("HTMLAnchorElement.prototype.click = function () { window.saved = [this.download, this.href]; }")
    browser.one("button.png").click()
    for _ in range(50):
        if browser.js("window.saved"):
            break
        time.sleep(0.05)
    name, address = browser.js("window.saved")
    assert name == "curves.png"
    picture = Image.open(io.BytesIO(base64.b64decode(address.partition(",")[2]))).convert("RGB")
    width = browser.js("document.querySelector('.plot').clientWidth")
    assert picture.size[0] == 2 * width
    colours = {colour for _, colour in picture.getcolors(1 << 20) or []}
    assert (0xD5, 0x5E, 0x00) in colours, "FedACG's line, in its colour"
    assert (255, 255, 255) in colours


@pytest.mark.slow
def test_a_table_that_goes_on_says_so_until_its_end(browser: Browser) -> None:
    assert not browser.all("#results .scroll.more")
    browser.resize(390, 844)
    time.sleep(0.3)
    assert browser.all("#results .scroll.more")
    hint = "getComputedStyle(document.querySelector('#results .scroll + *'), '::before').content"
    assert browser.js(hint) == '"Scrolls to the right →"'
    browser.js("document.querySelector('#results .scroll').scrollTo(10000, 0)")
    time.sleep(0.3)
    assert not browser.all("#results .scroll.more")
