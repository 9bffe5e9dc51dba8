"""FEMNIST's reader on small files in LEAF's layout: whole, missing, cut short, wrong; and on real ones."""

import json
import pickle
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fedacg.config.sections import DataSettings
from fedacg.data import catalogue
from fedacg.data.examples import Dataset, labels
from fedacg.data.files import data_root
from fedacg.data.origins import Published
from fedacg.data.sources import femnist
from fedacg.errors import InputError


def image(value: float) -> list[float]:
    """All of one grey, but for the first pixel (1) and the last (0)."""
    return [1.0, *[value] * 782, 0.0]


def leaf(**writers: tuple[list[Any], list[Any]]) -> dict[str, Any]:
    return {
        "users": list(writers),
        "num_samples": [len(y) for _, y in writers.values()],
        "user_data": {name: {"x": x, "y": y} for name, (x, y) in writers.items()},
    }


def write(folder: Path, part: str, *files: dict[str, Any] | str) -> list[Path]:
    paths = []
    for number, contents in enumerate(files):
        path = folder / part / f"all_data_{number}_niid_1_keep_0_{part}_9.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(contents if isinstance(contents, str) else json.dumps(contents))
        paths.append(path)
    return paths


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("FEDACG_DATA", str(tmp_path))
    return tmp_path


@pytest.fixture
def folder(root: Path) -> Path:
    """Three writers in two files to train on; two of them to test on."""
    made = root / "leaf" / "femnist" / "data"
    write(
        made,
        "train",
        leaf(cleo=([image(0.2)], [61]), abel=([image(0.4), image(0.6)], [0, 10])),
        leaf(bert=([image(0.8), image(1), image(0)], [3, 4, 5])),
    )
    write(made, "test", leaf(cleo=([image(0.1), image(0.3)], [7, 8]), abel=([image(0.5)], [9])))
    return made


def load() -> Dataset:
    """A copy so small is not the complete one, and is read because the user says so."""
    return catalogue.load("femnist", partial=True)


def train_file(folder: Path, number: int = 0) -> Path:
    return folder / "train" / f"all_data_{number}_niid_1_keep_0_train_9.json"


def prepared(root: Path) -> list[Path]:
    """What was made of the data, whole or half."""
    return [path for path in (root / "prepared").rglob("*") if path.is_dir()]


def greys(whole: Dataset, part: str) -> list[int]:
    x, _ = getattr(whole, part).fetch(torch.arange(len(getattr(whole, part))))
    assert x.dtype == torch.uint8
    assert x.shape[1:] == (1, 28, 28)
    assert x[:, 0, 0, 0].eq(255).all()
    assert x[:, 0, -1, -1].eq(0).all()
    return x[:, 0, 14, 14].tolist()


def test_images_and_labels_lie_writer_after_writer_in_the_order_of_names(folder: Path) -> None:
    whole = load()
    assert whole.owners is not None
    assert whole.owners.names == ("abel", "bert", "cleo")
    assert whole.owners.train.tolist() == [0, 2, 5, 6]
    assert whole.owners.test.tolist() == [0, 1, 1, 3]
    assert greys(whole, "train") == [102, 153, 204, 255, 0, 51]
    assert greys(whole, "test") == [128, 26, 76]
    assert labels(whole.train).tolist() == [0, 10, 3, 4, 5, 61]
    assert labels(whole.test).tolist() == [9, 7, 8]
    assert labels(whole.train).dtype == torch.int64
    assert (whole.classes, whole.shape) == (62, (1, 28, 28))


def test_rows_of_an_image_stay_rows(folder: Path) -> None:
    upright = [(row * 9 + column) / 255 for row in range(28) for column in range(28)]
    write(folder, "train", leaf(cleo=([[min(value, 1) for value in upright]], [1])), leaf(abel=([image(0)], [1])))
    x, _ = load().train.fetch(torch.tensor([1]))
    assert x[0, 0, 3, :4].tolist() == [27, 28, 29, 30]
    assert x[0, 0, :4, 3].tolist() == [3, 12, 21, 30]


def test_every_byte_survives_the_way_through_fractions(folder: Path) -> None:
    as_leaf_writes = [byte / 255 for byte in range(256)]
    as_rounded = [round(byte / 255, 4) for byte in range(256)]
    write(folder, "train", leaf(cleo=([as_leaf_writes + as_rounded + [0] * 272], [1]), abel=([image(0)], [1])))
    train_file(folder, 1).unlink()
    x, _ = load().train.fetch(torch.tensor([1]))
    assert x.flatten().tolist() == [*range(256), *range(256), *[0] * 272]


def test_values_may_be_as_many_as_there_are_pixels(folder: Path) -> None:
    values = np.linspace(0, 1, 8 * 784).reshape(8, 784)
    write(folder, "train", leaf(cleo=(values.tolist(), [1] * 8), abel=([image(0)], [1])))
    train_file(folder, 1).unlink()
    x, _ = load().train.fetch(torch.arange(1, 9))
    assert np.abs(x.flatten(1).numpy() - values * 255).max() <= 0.5


def test_the_model_sees_values_between_0_and_1_and_augmentation_is_refused(folder: Path) -> None:
    whole = load()
    x, _ = whole.train.fetch(torch.tensor([0]))
    seen = whole.pipeline(x, torch.Generator())
    assert seen.dtype == torch.float32
    assert seen[0, 0, 0, :2].tolist() == pytest.approx([1.0, 0.4])
    with pytest.raises(InputError, match="femnist is not augmented"):
        catalogue.load("femnist", augment=True)


def test_a_federation_of_all_writers_has_their_natural_sizes(folder: Path) -> None:
    data = catalogue.federate(DataSettings(name="femnist", split="natural", clients=0, partial=True), seed=0)
    assert [data.clients.size(client) for client in range(len(data.clients))] == [2, 3, 1]
    assert labels(data.clients[1]).tolist() == [3, 4, 5]
    assert len(data.test) == 3


@pytest.mark.parametrize("place", ["leaf/femnist/data", "femnist/data", "femnist"])
def test_the_folders_are_found_in_each_of_their_places(root: Path, place: str) -> None:
    write(root / place, "train", leaf(abel=([image(1)], [1])))
    write(root / place, "test", leaf(abel=([image(1)], [2])))
    assert catalogue.where("femnist") == root / place
    assert len(load().train) == 1


def test_missing_data_are_told_where_they_were_looked_for(root: Path) -> None:
    assert catalogue.where("femnist") is None
    with pytest.raises(InputError) as refusal:
        load()
    for place in ("leaf/femnist/data", "femnist/data", "femnist"):
        assert f"{root}/{place}/train/*.json" in str(refusal.value)
        assert f"{root}/{place}/test/*.json" in str(refusal.value)


@pytest.mark.parametrize("part", ["train", "test"])
def test_a_part_without_files_is_named_unless_another_place_is_whole(folder: Path, root: Path, part: str) -> None:
    for path in (folder / part).iterdir():
        path.unlink()
    with pytest.raises(InputError, match=rf"{folder / part} has no \.json files"):
        load()
    other = root / "femnist"
    write(other, "train", leaf(abel=([image(1)], [1])))
    write(other, "test", leaf(abel=([image(1)], [2])))
    assert catalogue.where("femnist") == other


def test_the_second_load_reads_no_json(folder: Path, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = load()

    def read(path: Path) -> None:
        pytest.fail(f"{path} was read again")

    assert {path.suffix for path in prepared(root)[0].iterdir()} == {".npy", ".json"}
    monkeypatch.setattr(femnist, "_read", read)
    second = load()
    assert greys(second, "train") == greys(first, "train")
    assert second.owners is not None
    assert second.owners.names == ("abel", "bert", "cleo")


def test_another_file_makes_the_data_anew(folder: Path) -> None:
    assert len(load().train) == 6
    write(folder, "train", leaf(cleo=([image(0)], [2]), abel=([image(0)], [2])))
    assert len(load().train) == 5


def test_prepared_images_travel_to_other_processes_as_a_path(folder: Path) -> None:
    train = load().train
    labels(train)
    sent = pickle.dumps(train)
    assert len(sent) < 1000
    assert labels(pickle.loads(sent)).tolist() == labels(train).tolist()


def test_a_writer_whom_leaf_left_out_for_lack_of_images_is_no_client(folder: Path) -> None:
    for part in ("train", "test"):
        contents = leaf(cleo=([image(0)], [1]))
        contents["user_data"]["lone"] = {"x": [], "y": []}
        for path in (folder / part).iterdir():
            path.unlink()
        write(folder, part, contents)
    whole = load()
    assert whole.owners is not None
    assert whole.owners.names == ("cleo",)


def test_keys_may_stand_in_any_order_and_with_any_white_space(folder: Path) -> None:
    contents = leaf(cleo=([image(0.2)], [61]), abel=([image(0.4)], [0]))
    turned = {"user_data": contents["user_data"], "hierarchies": ["a", "b"], **contents}
    write(folder, "train", json.dumps(turned, indent=1).replace(":", " \t\r\n:") + "\n ")
    whole = load()
    assert labels(whole.train).tolist() == [0, 3, 4, 5, 61]


def broken(**writers: tuple[list[Any], list[Any]]) -> dict[str, Any]:
    return leaf(abel=([image(0)], [1]), **writers)


def without(key: str) -> dict[str, Any]:
    contents = broken()
    del contents[key]
    return contents


BAD: list[tuple[str, dict[str, Any] | str, str]] = [
    (
        "label too large",
        broken(eve=([image(0), image(0)], [3, 62])),
        r"has labels from 3 to 62, beyond 0 to 61.*'eve'",
    ),
    ("label below zero", broken(eve=([image(0)], [-1])), r"has labels from -1 to -1, beyond 0 to 61.*'eve'"),
    ("label with a fraction", broken(eve=([image(0)], [1.5])), r"labels that are not whole numbers.*'eve'"),
    ("label in words", broken(eve=([image(0)], ["a"])), r"labels that are not whole numbers.*'eve'"),
    ("label in a list", broken(eve=([image(0)], [[1]])), r"labels that are not whole numbers.*'eve'"),
    ("short image", broken(eve=([image(0), [0.5] * 783], [1, 1])), r"has 783 values as image 1 .* 784.*'eve'"),
    ("all short", broken(eve=([[0.5] * 783], [1])), r"has 783 values as image 0 .* list of 784.*'eve'"),
    ("no list as image", broken(eve=(["ink"], [1])), r"has 'ink' as image 0 .* list of 784"),
    ("too bright", broken(eve=([image(1.01)], [1])), r"has pixels from 0 to 1.01, beyond 0 to 1.*'eve'"),
    ("in bytes", broken(eve=([image(255)], [1])), r"has pixels from 0 to 255, beyond 0 to 1"),
    ("too dark", broken(eve=([image(-0.5)], [1])), r"has pixels from -0.5 to 1, beyond 0 to 1"),
    ("not a number", broken(eve=([image(float("nan"))], [1])), r"has pixels from nan to nan"),
    ("text as pixel", broken(eve=([[*[0.5] * 783, "0.5"]], [1])), r"has pixels that are not numbers.*'eve'"),
    ("null as pixel", broken(eve=([[*[0.5] * 783, None]], [1])), r"has pixels that are not numbers"),
    ("lists as pixels", broken(eve=([[[0.5]] * 784], [1])), r"has pixels that are not numbers"),
    ("ragged pixels", broken(eve=([[*[0.5] * 783, [0.5]]], [1])), r"has pixels that are not numbers"),
    ("no images", broken(eve=([], [])), r"has no images of writer 'eve'"),
    ("fewer labels", broken(eve=([image(0), image(0)], [1])), r"has 2 images and 1 labels.*'eve'"),
    (
        "listed but absent",
        {**broken(), "users": ["abel", "eve"]},
        r"""lists writer 'eve', who is not in "user_data""",
    ),
    ("there but not listed", {**broken(), "users": []}, r"has images of writer 'abel', who is not listed"),
    ("another count", {**broken(), "num_samples": [2]}, r'other numbers of images than "num_samples" says'),
    ("no users", without("users"), r'is not LEAF\'s JSON: it has no list of names under "users"'),
    ("users in numbers", {**broken(), "users": [1]}, r'has no list of names under "users"'),
    ("no data", without("user_data"), r"""lists writer 'abel', who is not in "user_data"""),
    ("data in a list", {**broken(), "user_data": []}, r"cannot be read as LEAF's JSON: Expecting '{'"),
    ("no x", {**broken(), "user_data": {"abel": {"y": [1]}}}, r'has not a list of images under "x".*\'abel\''),
    ("no object", {**broken(), "user_data": {"abel": [1]}}, r'has not a list of images under "x".*\'abel\''),
    ("a list", "[1, 2]", r"cannot be read as LEAF's JSON: Expecting '{' at character 0 of 6"),
    ("a web page", "<html>404</html>", r"cannot be read as LEAF's JSON: Expecting '{' at character 0"),
    ("nothing", "", r"cannot be read as LEAF's JSON: Expecting '{' at character 0 of 0"),
    ("two objects", json.dumps(broken()) * 2, r"cannot be read as LEAF's JSON: Expecting the end"),
    (
        "key without quotes",
        "{users: 1}",
        r"cannot be read as LEAF's JSON: Expecting a name in quotes at character 1",
    ),
]


@pytest.mark.parametrize(("contents", "message"), [row[1:] for row in BAD], ids=[row[0] for row in BAD])
def test_wrong_contents_are_refused_with_file_and_writer(
    folder: Path, root: Path, contents: dict[str, Any] | str, message: str
) -> None:
    write(folder, "train", contents)
    with pytest.raises(InputError, match=message) as refusal:
        load()
    assert str(train_file(folder)) in str(refusal.value)
    assert "'femnist'" in str(refusal.value)
    assert prepared(root) == []


@pytest.mark.parametrize("keep", [0.02, 0.3, 0.5, 0.9, 0.9999])
def test_json_that_is_cut_short_anywhere_is_refused_by_name(folder: Path, root: Path, keep: float) -> None:
    path = train_file(folder, 1)
    text = path.read_text()
    path.write_text(text[: int(len(text) * keep)])
    with pytest.raises(InputError, match=rf"{path} cannot be read as LEAF's JSON"):
        load()
    assert prepared(root) == []


def test_a_test_file_is_checked_as_well(folder: Path) -> None:
    (path,) = write(folder, "test", leaf(abel=([image(0)], [62])))
    with pytest.raises(InputError, match=rf"{path} has labels from 62 to 62"):
        load()


def test_bytes_that_are_no_text_are_refused_by_name(folder: Path) -> None:
    train_file(folder).write_bytes(b'{"users": ["\xff"]}')
    with pytest.raises(InputError, match=rf"{train_file(folder)} is not text .* at byte 12"):
        load()


def test_a_file_that_cannot_be_opened_is_refused_by_name(folder: Path) -> None:
    train_file(folder, 1).unlink()
    train_file(folder, 1).mkdir()
    with pytest.raises(InputError, match=rf"{train_file(folder, 1)} cannot be read"):
        load()


def test_the_same_writer_in_two_files_is_refused_for_they_come_from_two_runs(folder: Path) -> None:
    first, second = write(folder, "train", leaf(abel=([image(0)], [1])), leaf(abel=([image(1)], [1])))
    with pytest.raises(InputError, match=rf"{second} has writer 'abel', who is in {first} too: .* one run"):
        load()


def test_a_writer_to_test_on_who_is_not_trained_on_is_refused(folder: Path) -> None:
    (path,) = write(folder, "test", leaf(dora=([image(0)], [1])))
    with pytest.raises(InputError, match=rf"{path} has writer 'dora', who is not in train: .* -t sample"):
        load()


def test_a_writer_may_have_no_test_images_but_not_all_of_them(folder: Path) -> None:
    (path,) = write(folder, "test", leaf(abel=([], []), cleo=([image(0)], [1])))
    assert len(load().test) == 1
    write(folder, "test", leaf(abel=([], [])))
    with pytest.raises(InputError, match=rf"{path.parent} has no images"):
        load()


def test_only_one_writer_at_a_time_is_held_as_python_values(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    held: list[object] = []
    read: Callable[[Any], Any] = femnist._Cursor.value

    def value(cursor: Any) -> Any:
        held.append(read(cursor))
        return held[-1]

    monkeypatch.setattr(femnist._Cursor, "value", value)
    load()
    writers = [found for found in held if isinstance(found, dict)]
    assert [set(found) for found in writers] == [{"x", "y"}] * 5


def test_an_incomplete_copy_is_used_only_when_the_user_says_so(folder: Path) -> None:
    with pytest.raises(InputError) as refusal:
        catalogue.load("femnist")
    for expected in (
        f"{folder} lacks test/all_data_1_….json; has 1 writers who are not in test, such as 'bert'",
        "has 3 clients where there should be at least 3550 (data.partial = true uses it as it is)",
        "TalwalkarLab/leaf",
    ):
        assert expected in str(refusal.value)
    assert "fedacg data get" not in str(refusal.value)
    whole = load()
    assert whole.origin is not None
    assert (whole.origin.copy, whole.origin.clients, whole.origin.train) == (str(folder), 3, 6)
    assert len(whole.origin.differences) == 3


@pytest.mark.parametrize("part", ["train", "test"])
def test_a_file_that_is_missing_from_either_folder_is_noticed(
    root: Path, monkeypatch: pytest.MonkeyPatch, part: str
) -> None:
    small = replace(femnist.FEMNIST, published=Published(least_clients=3))
    monkeypatch.setitem(catalogue.FACTS, "femnist", replace(catalogue.FACTS["femnist"], source=small))
    made = root / "femnist"
    names = [f"w{number}" for number in range(4)]
    for each in ("train", "test"):
        write(made, each, *(leaf(**{name: ([image(0.5)], [1])}) for name in names))
    assert catalogue.load("femnist").owners.names == tuple(names)  # type: ignore[union-attr]
    (made / part / f"all_data_1_niid_1_keep_0_{part}_9.json").unlink()
    message = "lacks test/all_data_1" if part == "test" else "who is not in train"
    with pytest.raises(InputError, match=message):
        catalogue.load("femnist")


def test_hidden_files_of_other_systems_are_passed_over(folder: Path) -> None:
    (folder / "train" / "._all_data_0_niid_1_keep_0_train_9.json").write_bytes(b"\x00\x05\x16\x07")
    assert len(load().train) == 6


REAL = catalogue.where("femnist")


@pytest.mark.slow
@pytest.mark.skipif(REAL is None, reason=f"FEMNIST is not in {data_root()}: set FEDACG_DATA to where it lies")
def test_real_femnist_has_the_writers_and_counts_that_its_files_tell(root: Path) -> None:
    assert isinstance(REAL, Path)
    (root / "femnist").symlink_to(REAL)
    whole = load()
    assert whole.owners is not None
    for part, offsets in (("test", whole.owners.test), ("train", whole.owners.train)):
        told: dict[str, int] = {}
        for path in sorted((REAL / part).glob("*.json")):
            text = path.read_text()
            users, sizes = (after(text, key) for key in ("users", "num_samples"))
            told |= dict(zip(users, sizes, strict=True))
        assert dict(zip(whole.owners.names, offsets.diff().tolist(), strict=True)) == told
    writer = users[-1]  # in the last training file
    place = whole.owners.train[whole.owners.names.index(writer)]
    x, y = whole.train.fetch(torch.stack([place, place + 1]))
    written = after(text, writer)
    assert np.allclose(whole.pipeline(x).flatten(1).numpy(), written["x"][:2], atol=1e-4)
    assert y.tolist() == written["y"][:2]
    assert labels(whole.train).unique().tolist() == list(range(62))


def after(text: str, key: str) -> Any:
    """The JSON value after the first appearance of a key."""
    start = text.index(f'"{key}":') + len(key) + 3
    return json.JSONDecoder().raw_decode(text[start:].lstrip())[0]
