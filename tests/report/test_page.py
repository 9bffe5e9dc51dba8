"""The report's page as text: what it says, what it may load, and the data that its script draws.

What the script makes of them is tried in a browser, in test_page_browser.py.
"""

import base64
import hashlib
import io
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from fedacg.config.sections import DataSettings
from fedacg.report import labels, pictures, write
from fedacg.report import page as page_module
from fedacg.report.labels import LabelCounts, figures
from fedacg.report.page import attendances
from fedacg.report.page_text import SplitPicture
from fedacg.report.runs import find_runs, group_runs, load_run
from fedacg.report.series import curves_of
from support.folders import add_round, fake_run
from support.page import Page


@pytest.fixture(autouse=True)
def undrawn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pictures for papers take most of a report's time; what stands in the page is this."""
    monkeypatch.setattr(pictures, "render", lambda figure, kind, dpi=0: b"a picture")


def report(*folders: Path, out: Path, targets: list[float] | None = None) -> Page:
    write(folders, out, targets)
    return Page((out / "index.html").read_text(encoding="utf-8"))


# What the page says


def test_page_shows_table_settings_and_how_to_reproduce(tmp_path):
    folders = [
        fake_run(tmp_path / "my runs" / f"{method}{seed}", [0.5 + seed / 10, 0.75, 0.95], method, seed)
        for method in ("fedavg", "fedacg")
        for seed in (0, 1)
    ]
    page = report(*folders, out=tmp_path / "out", targets=[0.6])
    words = " ".join(" ".join(page.words).split())
    assert "4 runs of 2 methods on digits" in words
    assert "95.00 ±0.00" in words
    assert "alpha 0.3" in words
    for folder in folders:
        assert f"fedacg run '{folder}/experiment.toml'" in words
        assert " ".join((folder / "experiment.toml").read_text().split()) in words
    assert "0123456789ab" in words


def test_options_that_differ_stand_together_and_other_settings_apart(tmp_path):
    fake_run(tmp_path / "a", [0.5], "fedacg", options={"lam": 0.5, "beta": 0.1})
    fake_run(tmp_path / "b", [0.5], "fedacg", options={"lam": 0.9, "beta": 0.1}, alpha=0.6)
    fake_run(tmp_path / "c", [0.5], "fedavg", seed=1)
    page = report(tmp_path, out=tmp_path / "out")
    words = [line.strip() for line in page.words if line.strip()]
    start = words.index("What differs")
    assert words[start + 1 : start + 5] == ["method", "options", "seed", "data.alpha"]
    # The value is listed of beta too, as fedavg has none.
    assert words[start + 5 : start + 9] == ["FedACG lam=0.5", "lam = 0.5, beta = 0.1", "0", "0.3"]
    assert words[start + 9 : start + 13] == ["FedACG lam=0.9", "lam = 0.9, beta = 0.1", "0", "0.6"]
    assert words[start + 13 : start + 17] == ["FedAvg", "–", "1", "0.3"]


def test_page_escapes_what_comes_from_runs(tmp_path):
    evil = '</script><script>alert("1")</script>'
    fake_run(tmp_path / "<b>run & co", [0.5, 0.6], evil, options={"x": '"><img onerror=y>'}, data=evil)
    fake_run(tmp_path / "c", [0.5, 0.6], evil, options={"x": "$x^$ {{ 7 * 7 }}"}, data=evil)
    page = report(tmp_path, out=tmp_path / "out")
    assert page.tags.count("script") == 2
    assert {value for _, value in page.having("src")} == {"data:image/png;base64,YSBwaWN0dXJl"}
    assert "b" not in page.tags
    assert not any(name.startswith("on") for _, name, _ in page.attributes)
    assert any(evil in words for words in page.words)
    assert any("{{ 7 * 7 }}" in words for words in page.words)
    assert evil in page.data["curves"][0]["label"]


# What it may load


def test_page_needs_no_network(tmp_path):
    page = report(fake_run(tmp_path / "a", [0.5, 0.6]), out=tmp_path / "out")
    # The name of SVG is an address that nobody visits.
    assert "http" not in page.text.replace("http://www.w3.org/2000/svg", "").replace("http-equiv", "")
    assert not re.search(r"url\(|@import|import\(|//\w", page.text.replace("http://www.w3.org/2000/svg", ""))
    assert all(value.startswith("data:") for _, value in page.having("src") if value)
    assert all(value.startswith(("#", "data:")) for _, value in page.having("href") if value)
    assert not page.having("srcset")


def test_the_page_forbids_itself_the_network_and_every_script_but_its_own(tmp_path):
    page = report(fake_run(tmp_path / "a", [0.5, 0.6]), out=tmp_path / "out")
    contents = [value or "" for tag, value in page.having("content") if tag == "meta"]
    (text,) = [content for content in contents if "default-src" in content]
    policy = dict(part.strip().split(" ", 1) for part in text.split(";"))
    digest = base64.b64encode(hashlib.sha256(page.scripts[1].encode()).digest()).decode()
    assert policy["default-src"] == "'none'"
    assert policy["connect-src"] == "'none'"
    assert policy["script-src"] == f"'sha256-{digest}'"


def test_without_a_script_there_are_the_table_and_a_picture(tmp_path):
    page = report(fake_run(tmp_path / "a", [0.5, 0.6]), out=tmp_path / "out")
    fallback = re.search(r"<noscript>(.*?)</noscript>", page.text, re.DOTALL)
    assert fallback is not None
    assert f"data:image/png;base64,{base64.b64encode(b'a picture').decode()}" in fallback[1]
    assert ":root:not(.script) .scripted { display: none; }" in page.text
    # Between the table and the end of the page nothing that takes a script is outside what it shows.
    for name in ("curves", "attendance"):
        assert f'<section id="{name}" class="scripted"' in page.text


# The data of its script


def test_curves_have_means_deviations_and_what_was_spent(tmp_path):
    fake_run(tmp_path / "a", [0.25, None, 0.5], seed=0, sent=1_000_000)
    fake_run(tmp_path / "b", [0.75, 0.5, 0.5], seed=1, sent=3_000_000)
    (curve,) = report(tmp_path, out=tmp_path / "out", targets=[0.5]).data["curves"]
    evaluated = curve["evaluated"]
    assert evaluated["rounds"] == [1, 3]
    assert evaluated["bytes"] == [4_000_000, 12_000_000]
    assert evaluated["seconds"] == [1, 3]
    assert evaluated["accuracy"] == [50, 50]
    assert evaluated["accuracy_sd"] == [35.4, 0]
    assert evaluated["accuracy_seeds"] == [[25, 50], [75, 50]]
    assert evaluated["loss"] == [0.5, 0.5]
    assert curve["played"] == {
        "rounds": [1, 2, 3],
        "bytes": [4_000_000, 8_000_000, 12_000_000],
        "seconds": [1, 2, 3],
        "training": [1, 1, 1],
        "training_sd": [0, 0, 0],
        "training_seeds": [[1, 1, 1], [1, 1, 1]],
        "seeds_at": [],
    }


def test_what_is_not_a_number_is_null(tmp_path):
    run = fake_run(tmp_path / "a", [0.5])
    add_round(run, 2, 0.6, train_loss=float("nan"), test_loss=float("inf"))
    (curve,) = report(run, out=tmp_path / "out").data["curves"]
    assert curve["played"]["training"] == [1, None]
    assert curve["evaluated"]["loss"] == [0.5, None]
    assert "accuracy_sd" not in curve["evaluated"]


def to_record(folders: list[Path]) -> Any:
    runs = [load_run(folder) for folder in find_runs(folders)]
    return json.loads(page_module.to_json(curves_of(group_runs(runs)), [], attendances(runs), []))


def test_long_curves_are_thinned_to_what_a_screen_shows_and_keep_their_ends(tmp_path, monkeypatch):
    fake_run(tmp_path / "a", [n / 1000 for n in range(1, 1001)])
    assert len(to_record([tmp_path])["curves"][0]["played"]["rounds"]) == 1000
    monkeypatch.setattr(page_module, "POINTS", 300)
    monkeypatch.setattr(page_module, "FEWEST", 10)
    (curve,) = to_record([tmp_path])["curves"]
    for track in (curve["evaluated"], curve["played"]):
        assert len(track["rounds"]) == 150
        assert (track["rounds"][0], track["rounds"][-1]) == (1, 1000)
        assert track["bytes"] == [2000 * round for round in track["rounds"]]
    assert curve["evaluated"]["accuracy"] == [round / 10 for round in curve["evaluated"]["rounds"]]


# Who took part


def test_runs_that_asked_the_same_clients_are_listed_once(tmp_path):
    for number, (method, cohort, rounds) in enumerate(
        [("fedavg", (1, 2), 3), ("fedacg", (1, 2), 2), ("fedprox", (1, 3), 3)]
    ):
        fake_run(tmp_path / str(number), [0.5] * rounds, method, cohort=cohort)
    shared, other = to_record([tmp_path])["attendances"]
    assert shared["labels"] == ["FedAvg", "FedACG"]
    assert shared["asked"] == [[1, 2]] * 3
    assert (other["labels"], other["asked"]) == (["FedProx"], [[1, 3]] * 3)


def test_the_lost_and_the_slow_are_named(tmp_path):
    run = fake_run(tmp_path / "a", [0.5])
    add_round(run, 2, 0.6, cohort=(4, 7, 120), answered=(4, 7), stragglers=(7,))
    (found,) = to_record([run])["attendances"]
    assert found["rounds"] == [1, 2]
    assert (found["lost"], found["slow"]) == ({"2": [120]}, {"2": [7]})
    assert found["clients"] == 121


def test_of_very_many_visits_some_rounds_are_listed(tmp_path, monkeypatch):
    fake_run(tmp_path / "a", [0.5] * 100, cohort=range(10))
    assert to_record([tmp_path])["attendances"][0]["every"] == 1
    monkeypatch.setattr(page_module, "VISITS", 300)
    (found,) = to_record([tmp_path])["attendances"]
    assert (found["every"], found["rounds"]) == (4, list(range(1, 101, 4)))


# Who holds what


def test_the_split_is_the_one_that_the_run_had(tmp_path):
    page = report(fake_run(tmp_path / "a", [0.5], seed=3, alpha=0.05), out=tmp_path / "out")
    expected = labels.look(DataSettings(alpha=0.05), 3)
    (found,) = page.data["splits"]
    assert found["clients"] == expected.held.clients[expected.held.order].tolist()
    assert found["counts"] == expected.held.counts[expected.held.order].tolist()
    assert "digits: dirichlet (α = 0.05), 100 clients, seed 3" in page.text


def test_the_picture_of_a_split_covers_the_ground_by_the_share():
    counts = np.array([[4, 0], [1, 3]])
    held = LabelCounts(np.arange(2), counts, 2)
    picture = SplitPicture(labels.Split("two", held, figures(counts, np.random.default_rng(0))))
    image = Image.open(io.BytesIO(base64.b64decode(picture.source.split(",")[1])))
    cover = np.asarray(image)[..., 3]
    # Class 0 is the lowest row; shares 1, 0; 1/4, 3/4 by the square root.
    assert cover.tolist() == [[0, 221], [255, 128]]
    assert picture.sizes == "M0 100V0.0h1V0.0h1V100Z"
    assert [(tick.at, tick.text) for tick in picture.ticks] == [(25.0, "0"), (75.0, "1")]


def test_every_kind_of_data_has_its_split_under_its_first_seed(tmp_path):
    for number, (seed, alpha) in enumerate([(5, 0.1), (2, 0.1), (7, 0.9)]):
        fake_run(tmp_path / str(number), [0.5], seed=seed, alpha=alpha)
    found, missing = labels.splits_of([load_run(folder) for folder in find_runs([tmp_path])])
    assert [each.title.split("dirichlet ")[1] for each in found] == [
        "(α = 0.1), 100 clients, seed 2",
        "(α = 0.9), 100 clients, seed 7",
    ]
    assert missing == []


def test_data_that_are_not_at_hand_or_not_of_the_catalogue_are_said_so(tmp_path, monkeypatch):
    monkeypatch.setenv("FEDACG_DATA", str(tmp_path / "nothing"))
    marker = tmp_path / "ran"
    (tmp_path / "evil.py").write_text(f"import pathlib; pathlib.Path({str(marker)!r}).touch()\n")
    monkeypatch.syspath_prepend(tmp_path)
    fake_run(tmp_path / "runs" / "a", [0.5], data="cifar10")
    fake_run(tmp_path / "runs" / "b", [0.5], data="evil:data")
    page = report(tmp_path / "runs", out=tmp_path / "out")
    assert page.data["splits"] == []
    assert "fedacg data get cifar10" in page.text
    assert "evil:data: not a data set of the catalogue" in page.text
    assert not marker.exists()
    assert not (tmp_path / "out" / "labels.png").exists()


def test_settings_of_another_version_cost_the_split_and_nothing_else(tmp_path):
    run = fake_run(tmp_path / "a", [0.5])
    text = (run / "experiment.toml").read_text().replace("alpha = 0.3", "alpha = 0.3\nsquash = 1")
    (run / "experiment.toml").write_text(text)
    page = report(run, out=tmp_path / "out")
    assert "is from another version" in page.text
    assert len(page.data["curves"]) == 1
