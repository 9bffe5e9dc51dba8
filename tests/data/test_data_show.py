"""`fedacg data show`: what is printed and written, for drawn, saved and natural splits, and what is refused."""

import numpy as np
import pytest
import torch
from PIL import Image

from fedacg.data import catalogue
from fedacg.data.examples import Dataset, Owners
from fedacg.data.pipelines import PlainPipeline
from fedacg.report import labels, pictures
from support.command import Command
from support.labels import examples


@pytest.fixture
def undrawn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pictures are written but not drawn, which is what takes the time."""
    monkeypatch.setattr(pictures, "draw_labels", lambda *_: None)
    monkeypatch.setattr(pictures, "render", lambda *_: b"a picture")


def test_show_prints_the_clients_the_figures_and_the_picture(fedacg: Command) -> None:
    outcome = fedacg("data", "show", "digits", "--clients", "25", "--split", "shards", "--shards", "3")
    assert (outcome.code, outcome.err) == (0, "")
    lines = outcome.out.splitlines()
    assert all(len(line) <= 80 for line in lines)
    assert lines[0] == "digits: shards (3 per client), 25 clients"
    rows = lines[3:23]
    assert [row.split()[0] for row in rows] == [str(client) for client in range(20)]
    assert all(int(row.split()[2]) <= 3 for row in rows)
    assert lines[23] == "… and 5 more"
    figures = {line[:22].strip(): line[22:].strip() for line in lines[26:]}
    assert figures["examples per client"].startswith("min ")
    assert "mean 57.5, max" in figures["examples per client"]
    assert figures["entropy of labels"].endswith("bits; all together 3.32 bits")
    distance, chance = figures["distance from i.i.d."].split("; by chance ")
    assert 0.65 < float(distance) < 0.8
    assert 0.1 < float(chance) < 0.25
    assert figures["picture"] == "digits-shards.png"
    with Image.open(fedacg.folder / "digits-shards.png") as png:
        assert png.format == "PNG"


@pytest.mark.parametrize(
    ("words", "title"),
    [
        ([], "digits: dirichlet (α = 0.3), 100 clients"),
        (["--split", "iid", "--clients", "7"], "digits: iid, 7 clients"),
        (["--split", "dirichlet-unequal", "--alpha", "2"], "digits: dirichlet-unequal (α = 2), 100 clients"),
        (["--split", "quantity", "--alpha", "0.5"], "digits: quantity (α = 0.5), 100 clients"),
    ],
)
@pytest.mark.usefixtures("undrawn")
def test_the_title_says_how_examples_were_dealt(fedacg: Command, words: list[str], title: str) -> None:
    assert fedacg("data", "show", "digits", *words).out.splitlines()[0] == title


@pytest.mark.usefixtures("undrawn")
def test_what_is_shown_is_the_split_that_is_saved(fedacg: Command) -> None:
    dealt = ["--clients", "6", "--split", "dirichlet-unequal", "--alpha", "0.2", "--seed", "3"]
    assert fedacg("data", "split", "digits", *dealt, "--out", "mine.npz").code == 0
    drawn = fedacg("data", "show", "digits", *dealt).out.splitlines()
    saved = fedacg("data", "show", "digits", "--clients", "6", "--split-file", "mine.npz", "--seed", "3")
    lines = saved.out.splitlines()
    assert lines[0] == "digits: split of mine.npz, 6 clients"
    assert lines[1:-1] == drawn[1:-1]
    assert lines[-1].split() == ["picture", "digits-mine.png"]
    other = fedacg("data", "show", "digits", *dealt[:-1], "4").out.splitlines()
    assert other[3:9] != drawn[3:9]


@pytest.mark.usefixtures("undrawn")
def test_synthetic_clients_are_shown_as_they_come_and_of_a_million_some(
    fedacg: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = fedacg("data", "show", "synthetic", "--clients", "5", "--out", "new/picture.png")
    assert whole.out.splitlines()[0] == "synthetic: natural (α = 0.3, β = 1), 5 clients"
    assert (fedacg.folder / "new" / "picture.png").is_file()
    monkeypatch.setattr(labels.count, "__defaults__", (30,))
    some = fedacg("data", "show", "synthetic", "--clients", "1000000")
    assert some.out.splitlines()[0] == "synthetic: natural (α = 0.3, β = 1), 30 of 1000000 clients"
    assert "for 30 clients chosen at random" in some.out
    assert "chosen at random" not in whole.out
    other = fedacg("data", "show", "synthetic", "--clients", "1000000", "--seed", "1")
    shown, shown_then = ([line[:8] for line in each.out.splitlines()[3:23]] for each in (some, other))
    assert shown != shown_then
    assert fedacg("data", "show", "synthetic").out.splitlines()[0].endswith(", 30 of 100 clients")
    assert all(len(line) <= 80 for line in some.out.splitlines())


@pytest.mark.usefixtures("undrawn")
def test_data_that_come_with_their_clients_are_shown_by_them(
    fedacg: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    owners = Owners(("anna", "ben", "carl"), torch.tensor([0, 3, 4, 8]), torch.tensor([0, 1, 2, 3]))
    train, test = examples(0, 0, 1, 1, 0, 1, 2, 2), examples(0, 1, 2)
    own = Dataset("femnist", train, test, PlainPipeline(), 3, (1,), owners)
    monkeypatch.setattr(catalogue, "load", lambda *_, **__: own)
    lines = fedacg("data", "show", "femnist").out.splitlines()
    assert lines[0] == "femnist: natural, 3 clients"
    assert [line.split()[:3] for line in lines[3:6]] == [["0", "3", "2"], ["1", "1", "1"], ["2", "4", "3"]]
    assert (fedacg.folder / "femnist-natural.png").is_file()
    two = fedacg("data", "show", "femnist", "--clients", "2").out.splitlines()
    assert two[0] == "femnist: natural, 2 clients"
    dealt = fedacg("data", "show", "femnist", "--split", "iid", "--clients", "4").out.splitlines()
    assert dealt[0] == "femnist: iid, 4 clients"


@pytest.mark.usefixtures("undrawn")
def test_a_folder_is_shown_by_its_sub_folders_and_can_be_split(fedacg: Command) -> None:
    for client, y in (("anna", [0] * 10), ("ben", [0, 1] * 10)):
        (fedacg.folder / "mine" / client).mkdir(parents=True)
        np.savez(fedacg.folder / "mine" / client / "all.npz", x=np.zeros((len(y), 2), np.float32), y=np.array(y))
    lines = fedacg("data", "show", "folder", "--path", "mine").out.splitlines()
    assert lines[0] == "folder: natural, 2 clients"
    assert [line.split()[:3] for line in lines[3:5]] == [["0", "9", "1"], ["1", "18", "2"]]
    assert (fedacg.folder / "folder-natural.png").read_bytes() == b"a picture"
    words = ["--path", "mine", "--clients", "3"]
    saved = fedacg("data", "split", "folder", *words, "--out", "three.npz")
    assert saved.out == "three.npz: 27 examples of folder for 3 clients\n"
    again = fedacg("data", "show", "folder", *words, "--split-file", "three.npz").out.splitlines()
    assert again[0] == "folder: split of three.npz, 3 clients"


@pytest.mark.usefixtures("undrawn")
def test_a_function_of_ones_own_is_shown(fedacg: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    own = Dataset("wine", examples(0, 1, 0, 1), examples(0, 1), PlainPipeline(), 2, (1,))
    monkeypatch.setattr(catalogue, "load", lambda *_, **__: own)
    lines = fedacg("data", "show", "mine:wine", "--clients", "2").out.splitlines()
    assert lines[0] == "mine:wine: dirichlet (α = 0.3), 2 clients"
    assert lines[-1].split() == ["picture", "mine-wine-dirichlet.png"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["digts"], "unknown data set 'digts': did you mean 'digits'?"),
        (["digits", "--split", "shrads"], "unknown split 'shrads': did you mean 'shards'?"),
        (["digits", "--split", "natural"], "data.split = natural: digits does not come with clients"),
        (["synthetic", "--split", "iid"], "data.split = iid: synthetic comes with its clients"),
        (["digits", "--alpha", "-1"], "data.alpha = -1.0: must be greater than or equal to 0"),
        (["digits", "--alpha", "nan"], "data.alpha = nan: must be a finite number"),
        (["digits", "--alpha", "0"], "data.alpha = 0: must be greater than 0"),
        (["digits", "--clients", "0"], "data.clients = 0: must be at least 1"),
        (["digits", "--clients", "1439"], "data.clients = 1439: more clients than examples (1438)"),
        (["digits", "--split", "shards", "--shards", "11"], "data.shards = 11: must be from 1 to the number"),
        (["digits", "--shards", "0"], "data.shards = 0: must be greater than or equal to 1"),
        (["digits", "--seed", "-1"], "seed = -1: must be greater than or equal to 0"),
        (["digits", "--split-file", "none.npz"], "none.npz: there is no such file"),
        (["digits", "--out", "picture.pdf"], "--out picture.pdf: must end in .png"),
        (["digits", "--out", "tiny.toml/a.png"], "tiny.toml/a.png: the picture cannot be written: "),
    ],
)
@pytest.mark.usefixtures("undrawn")
def test_bad_input_is_refused_with_what_is_wrong(fedacg: Command, words: list[str], message: str) -> None:
    outcome = fedacg("data", "show", *words)
    assert (outcome.code, outcome.out) == (2, "")
    assert outcome.err.startswith("error: ")
    assert message in outcome.err
    assert [file.name for file in fedacg.folder.iterdir()] == ["tiny.toml"], "nothing is written"


@pytest.mark.usefixtures("undrawn")
def test_a_picture_cannot_take_the_place_of_a_folder(fedacg: Command) -> None:
    (fedacg.folder / "taken.png").mkdir()
    outcome = fedacg("data", "show", "digits", "--out", "taken.png")
    assert outcome.code == 2
    assert "taken.png: the picture cannot be written: Is a directory" in outcome.err
