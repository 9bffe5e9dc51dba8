"""Shakespeare's roles and windows on small plays in Project Gutenberg's layout, and on the real text."""

import pickle
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedacg.config.sections import DataSettings
from fedacg.data import catalogue
from fedacg.data.examples import Dataset, labels
from fedacg.data.files import data_root
from fedacg.data.prepared import MappedArray
from fedacg.data.sources import shakespeare
from fedacg.data.sources.shakespeare import ALPHABET, WINDOW, WindowExamples, cut, encode, roles
from fedacg.errors import InputError


def work(title: str, *lines: str) -> str:
    return "\n".join(["", "1600", "", title, "", "", "by William Shakespeare", "", *lines, "", "THE END", ""])


HEAD = "This is the 100th Etext file\n\n  Preface. Nobody says this.\n    Nor this.\n    Nor this.\n"
FIRST = work(
    "THE TRAGEDY OF X, A PRINCE",
    "  KING, a king",
    "",
    "ACT I. SCENE 1.",
    "",
    "  King. Good   day.",
    "    It is day;  ",
    "",
    "    still.",
    "  FOOL. Ay.",
    "  KING. Gone.",
    "                        Exit FOOL",
    "SCENE 2. A room",
    "    Alone",
    "  First Lord. One",
    "    two",
    "  first lord. three",
)
SECOND = work(
    "LOVE'S END", "    SCENE: a wood", "  KING. Other", "    play,", "    other king.", "  O. 1", "    2"
)


def test_a_role_has_its_lines_of_one_play_joined_by_single_spaces() -> None:
    assert roles(HEAD + FIRST + SECOND) == {
        "THE_TRAGEDY_OF_X_A_PRINCE_KING": "Good day. It is day; still. Gone. Exit FOOL Alone ",
        "THE_TRAGEDY_OF_X_A_PRINCE_FIRST_LORD": "One two three ",
        "LOVE_S_END_KING": "Other play, other king. ",
    }


@pytest.mark.parametrize("title", ["THE SONNETS", "A LOVER'S COMPLAINT"])
def test_poems_have_no_roles(title: str) -> None:
    text = work(title, "  Die to themselves. Sweet roses do not so,", "    one", "    two")
    assert roles(text) == {}
    assert list(roles(text + SECOND)) == ["LOVE_S_END_KING"]


def test_the_play_that_lost_its_indents_is_read_without_them() -> None:
    text = work(
        "THE COMEDY OF ERRORS",
        "DUKE. Merchant,",
        "  plead no more;",
        "",
        "Enter others",
        "<<THIS ELECTRONIC VERSION",
        "IS COPYRIGHT.>>",
        "DROMIO. A",
        "ACT II. SCENE 1",
        "A house",
        "Enter DROMIO",
        "DROMIO. b",
        "c",
    )
    spoken = roles(text)
    assert spoken["THE_COMEDY_OF_ERRORS_DUKE"] == "Merchant, plead no more; Enter others "
    assert spoken["THE_COMEDY_OF_ERRORS_DROMIO"].startswith("A b c ")
    assert len(spoken) == 2


def test_line_ends_of_other_systems_make_no_difference() -> None:
    assert roles((HEAD + FIRST + SECOND).replace("\n", "\r\n")) == roles(HEAD + FIRST + SECOND)


def test_the_code_of_a_character_is_its_place_in_the_alphabet_and_the_last_one_for_strangers() -> None:
    assert len(ALPHABET) == 80
    assert len(set(ALPHABET)) == 80
    assert encode(ALPHABET).tolist() == list(range(80))
    assert encode("a<é\x7f“😀b").tolist() == [ALPHABET.index("a"), *[79] * 5, ALPHABET.index("b")]


def load() -> Dataset:
    """A text so short is not the complete one, and is read because the user says so."""
    return catalogue.load("shakespeare", partial=True)


def play(*words: str) -> str:
    """A play whose roles A, B, … say these words, each on three lines."""
    lines = []
    for number, said in enumerate(words):
        third = len(said) // 3
        lines += [
            f"  {chr(65 + number)}. {said[:third]}",
            f"    {said[third : 2 * third]}",
            f"    {said[2 * third :]}",
        ]
    return work("PLAY", *lines)


def words(length: int, seed: int) -> str:
    """So many characters without spaces, so that joining three lines adds three spaces."""
    rng = np.random.default_rng(seed)
    return "".join(ALPHABET[code] for code in rng.integers(2, 80, length - 3))


def joined(said: str) -> str:
    third = len(said) // 3
    return " ".join([said[:third], said[third : 2 * third], said[2 * third :], ""])


LONG, SHORT, SCANT, TINY = words(1000, 1), words(500, 2), words(81, 3), words(80, 4)


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("FEDACG_DATA", str(tmp_path))
    return tmp_path


@pytest.fixture
def text(root: Path) -> Path:
    """Roles of 500, 80, 81 and 1000 characters."""
    path = root / "shakespeare" / "100.txt"
    path.parent.mkdir()
    path.write_text(HEAD + play(SHORT, TINY, SCANT, LONG))
    return path


def read(codes: torch.Tensor) -> str:
    return "".join(ALPHABET[code] for code in codes.tolist())


def test_windows_are_the_roles_words_with_the_character_that_follows(text: Path) -> None:
    whole = load()
    assert whole.owners is not None
    assert whole.owners.names == ("PLAY_A", "PLAY_C", "PLAY_D")
    # Nine tenths are 450, 81 (one window must be) and 900 characters; 50, 0 and 100 are left.
    assert whole.owners.train.tolist() == [0, 370, 371, 1191]
    assert whole.owners.test.tolist() == [0, 0, 0, 20]
    assert (len(whole.train), len(whole.test)) == (1191, 20)
    expected = [(role, start) for role, count in ((SHORT, 370), (SCANT, 1), (LONG, 820)) for start in range(count)]
    x, y = whole.train.fetch(torch.arange(1191))
    assert (x.shape, x.dtype, y.shape, y.dtype) == ((1191, 80), torch.int64, (1191,), torch.int64)
    assert x.is_contiguous()
    for window, after, (role, start) in zip(x, y, expected, strict=True):
        assert read(window) + ALPHABET[after] == joined(role)[start : start + 81]
    x, y = whole.test.fetch(torch.arange(20))
    for start, (window, after) in enumerate(zip(x, y, strict=True), 900):
        assert read(window) + ALPHABET[after] == joined(LONG)[start : start + 81]


def test_any_positions_can_be_fetched_in_any_order(text: Path) -> None:
    train = load().train
    x, y = train.fetch(torch.arange(1191))
    index = torch.tensor([1190, 0, 371, 370, 369, 0, 5, 1000])
    for chosen in (index, index[::2], index[:0], torch.stack([index, index], 1)[:, 1]):
        assert torch.equal(train.fetch(chosen)[0], x[chosen])
        assert torch.equal(train.fetch(chosen)[1], y[chosen])
        assert torch.equal(labels(train, chosen), y[chosen])
    with pytest.raises(IndexError):
        train.fetch(torch.tensor([1191]))


def test_the_model_sees_the_codes_themselves(text: Path) -> None:
    whole = load()
    x, _ = whole.train.fetch(torch.arange(3))
    assert whole.pipeline(x) is x
    assert (whole.classes, whole.shape) == (80, (80,))


def test_a_federation_of_all_roles_has_one_client_each(text: Path) -> None:
    data = catalogue.federate(DataSettings(name="shakespeare", split="natural", clients=0, partial=True), seed=0)
    assert [data.clients.size(client) for client in range(len(data.clients))] == [370, 1, 820]
    x, y = data.clients[1].fetch(torch.tensor([0]))
    assert read(x[0]) + ALPHABET[y[0]] == joined(SCANT)
    assert len(data.test) == 20


def positions(folder: Path, bounds: torch.Tensor) -> tuple[WindowExamples, WindowExamples]:
    """The cut of a text whose symbols are their own positions, so that a window tells which ones it takes."""
    path = folder / "positions.npy"
    np.save(path, np.arange(int(bounds[-1])))
    return cut(MappedArray(path), bounds)


@settings(max_examples=30)
@given(lengths=st.lists(st.integers(81, 1200), min_size=1, max_size=4))
def test_no_character_of_a_test_window_is_in_any_training_window(
    tmp_path_factory: pytest.TempPathFactory, lengths: list[int]
) -> None:
    bounds = torch.tensor([0, *lengths]).cumsum(0)
    train, test = positions(tmp_path_factory.mktemp("cut"), bounds)
    taken = []
    for part in (train, test):
        x, y = part.fetch(torch.arange(len(part)))
        taken.append(set(x.flatten().tolist()) | set(y.tolist()))
    assert not taken[0] & taken[1]
    for role, length in enumerate(lengths):
        own = range(int(bounds[role]), int(bounds[role + 1]))
        # As much as nine tenths allow is trained on, and all the rest that fills a window is tested on.
        trained = max(length * 9 // 10, WINDOW + 1)
        assert taken[0] & set(own) == set(own[:trained])
        assert taken[1] & set(own) == (set(own[trained:]) if length - trained > WINDOW else set())
    assert train.offsets.diff().min() >= 1


def test_a_window_stays_within_its_role(tmp_path: Path) -> None:
    bounds = torch.tensor([0, 100, 181, 2000])
    for part in positions(tmp_path, bounds):
        x, y = part.fetch(torch.arange(len(part)))
        role = torch.bucketize(x.contiguous(), bounds[1:], right=True)
        assert torch.equal(role, role[:, :1].expand(-1, 80))
        assert torch.equal(torch.bucketize(y.contiguous(), bounds[1:], right=True), role[:, 0])
        sizes = part.offsets.diff()
        assert torch.equal(role[:, 0].bincount(minlength=3), sizes)


def test_windows_cost_no_memory_and_travel_as_a_path(text: Path) -> None:
    train = load().train
    assert isinstance(train, WindowExamples)
    labels(train)
    assert (len(train.starts), len(train.offsets)) == (3, 4)
    assert train.symbols.tensor.dtype == torch.uint8
    assert len(train.symbols.tensor) == 500 + 81 + 1000
    sent = pickle.dumps(train)
    assert len(sent) < 2000
    assert torch.equal(labels(pickle.loads(sent)), labels(train))


def test_the_second_load_parses_nothing(text: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = load()
    monkeypatch.setattr(shakespeare, "roles", lambda text: pytest.fail("the text was parsed again"))
    second = load()
    assert second.owners is not None
    assert second.owners.names == ("PLAY_A", "PLAY_C", "PLAY_D")
    assert torch.equal(labels(second.train), labels(first.train))


@pytest.mark.parametrize(
    "place",
    [
        "shakespeare/100.txt",
        "leaf/shakespeare/data/raw_data/raw_data.txt",
        "leaf/shakespeare/data/raw_data/100.txt",
    ],
)
def test_the_text_is_found_in_each_of_its_places_with_or_without_a_byte_order_mark(root: Path, place: str) -> None:
    (root / place).parent.mkdir(parents=True)
    (root / place).write_text(play(SHORT), "utf-8-sig")
    assert catalogue.where("shakespeare") == root / place
    assert len(load().train) == 370


def test_missing_data_are_told_where_they_were_looked_for(root: Path) -> None:
    assert catalogue.where("shakespeare") is None
    with pytest.raises(InputError) as refusal:
        load()
    for expected in (
        f"{root}/shakespeare/100.txt",
        f"{root}/leaf/shakespeare/data/raw_data/raw_data.txt",
        f"{root}/leaf/shakespeare/data/raw_data/100.txt",
        "Project Gutenberg",
        "FEDACG_DATA",
    ):
        assert expected in str(refusal.value)


@pytest.mark.parametrize(
    ("contents", "message"),
    [
        (b"", "has no speaking roles"),
        (b"<html><body>404 Not Found</body></html>", "has no speaking roles"),
        (
            (HEAD + "\nMOBY DICK\n\nby Herman Melville\n\n  Ahab. Aye!\n    Aye!\n" * 50).encode(),
            "has no speaking roles",
        ),
        (HEAD.encode() + work("THE SONNETS", *["  Line. Of a sonnet"] * 50).encode(), "has no speaking roles"),
        ((HEAD + play(TINY)).encode(), "has no speaking roles"),
        (play(SHORT).encode() + b"caf\xe9 \xff", r"is not text in UTF-8 \(.* at byte 5\d\d\)"),
        (bytes(range(256)) * 4, "is not text in UTF-8"),
    ],
    ids=["nothing", "a web page", "another book", "poems only", "too few words", "other encoding", "no text"],
)
def test_a_text_without_roles_is_refused_and_leaves_nothing_behind(
    text: Path, root: Path, contents: bytes, message: str
) -> None:
    text.write_bytes(contents)
    with pytest.raises(InputError, match=message) as refusal:
        load()
    assert str(text) in str(refusal.value)
    assert [path for path in (root / "prepared").rglob("*") if path.is_dir()] == []


def test_a_part_of_the_text_is_used_only_when_the_user_says_so(text: Path) -> None:
    with pytest.raises(InputError) as refusal:
        catalogue.load("shakespeare")
    for expected in (
        f"{text} has ",
        "training examples where there should be 3794066",
        "test examples where there should be 361605",
        "has 3 clients where there should be 1130 (data.partial = true uses it as it is)",
        "gutenberg.org",
    ):
        assert expected in str(refusal.value)
    assert "fedacg data get" not in str(refusal.value)


REAL = catalogue.where("shakespeare")


@pytest.mark.skipif(REAL is None, reason=f"Shakespeare is not in {data_root()}: set FEDACG_DATA to where it lies")
def test_the_real_text_has_leafs_roles_and_windows(root: Path) -> None:
    assert isinstance(REAL, Path)
    (root / "shakespeare").mkdir()
    (root / "shakespeare" / "100.txt").symlink_to(REAL)
    whole = catalogue.load("shakespeare")
    assert whole.owners is not None
    assert isinstance(whole.train, WindowExamples)
    assert isinstance(whole.test, WindowExamples)
    assert len(whole.owners.names) == 1130
    assert len(whole.train.symbols.tensor) - 1130 * WINDOW == 4_226_206
    assert (len(whole.train), len(whole.test)) == (3_794_066, 361_605)
    hamlet = whole.owners.names.index("THE_TRAGEDY_OF_HAMLET_PRINCE_OF_DENMARK_HAM")
    x, y = whole.train.fetch(whole.owners.train[hamlet : hamlet + 1])
    assert read(x[0]) == "[aside] A little more than kin, and less than kind! Not so, my lord. I am too mu"
    assert ALPHABET[y[0]] == "c"
    # Per role, the first test window starts where the last training window, with what follows it, ends.
    tested = whole.owners.test.diff() > 0
    ends = whole.train.starts + whole.train.offsets.diff() + WINDOW
    assert torch.equal(whole.test.starts[tested], ends[tested])


@pytest.mark.skipif(REAL is None, reason=f"Shakespeare is not in {data_root()}: set FEDACG_DATA to where it lies")
def test_half_of_the_real_text_is_refused(root: Path) -> None:
    assert isinstance(REAL, Path)
    (root / "shakespeare").mkdir()
    whole = REAL.read_bytes()
    (root / "shakespeare" / "100.txt").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(InputError, match="clients where there should be 1130"):
        catalogue.load("shakespeare")
