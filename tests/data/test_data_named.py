"""A user's own data set by the name of its function: in experiments, on the command line, in worker processes."""

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from textwrap import dedent

import pytest

from fedacg.config.sections import DataSettings
from fedacg.data import catalogue
from fedacg.data.pipelines import Augment, ImagePipeline
from fedacg.errors import InputError
from support.command import Command

Write = Callable[[str], Path]


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Write]:
    """Writes the module `my_data` into the current folder; it is forgotten afterwards."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setattr(sys, "dont_write_bytecode", True)

    def write(text: str) -> Path:
        path = tmp_path / "my_data.py"
        path.write_text(dedent(text))
        return path

    yield write
    sys.modules.pop("my_data", None)


BLOBS = """
    import torch
    from fedacg.data import dataset

    class Halved:
        def __call__(self, x, augment=None):
            return x / 2

    class Counted:
        def __init__(self, first, last):
            self.first, self.last = first, last

        def __len__(self):
            return self.last - self.first

        def fetch(self, index):
            y = (index + self.first) % 2
            return torch.stack([y, index % 5, -y], dim=1) + 0.5, y

    def blobs():
        train, test = Counted(0, 60), Counted(60, 100)
        return dataset(train, test, clients=[f"c{i // 20}" for i in range(60)], name="blobs", pipeline=Halved())
"""


def test_a_function_by_name_is_called_and_any_split_deals_what_it_returns(write: Write) -> None:
    write(BLOBS)
    whole = catalogue.load("my_data:blobs")
    assert (whole.name, whole.classes, whole.shape, len(whole.train)) == ("blobs", 2, (3,), 60)
    own = catalogue.federate(DataSettings(name="my_data:blobs", split="natural", clients=0), 0)
    assert [own.clients.size(i) for i in range(len(own.clients))] == [20, 20, 20]
    dealt = catalogue.federate(DataSettings(name="my_data:blobs", split="iid", clients=12), 0)
    assert [dealt.clients.size(i) for i in range(len(dealt.clients))] == [5] * 12
    assert catalogue.where("my_data:blobs") == catalogue.OWN


def test_the_current_folder_comes_before_what_is_installed(write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    elsewhere = write(BLOBS).parent / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "my_data.py").write_text("")
    monkeypatch.syspath_prepend(elsewhere)
    assert catalogue.load("my_data:blobs").name == "blobs"


@pytest.mark.parametrize("workers", [0, 2])
def test_classes_of_the_module_serve_a_run_in_any_engine(write: Write, fedacg: Command, workers: int) -> None:
    write(BLOBS)
    settings = [
        "data.name=my_data:blobs",
        "data.split=natural",
        "data.clients=0",
        "rounds=4",
        *(["engine.name=processes", f"engine.workers={workers}"] if workers else []),
    ]
    words = [word for setting in settings for word in ("--set", setting)]
    outcome = fedacg("run", "tiny.toml", *words, "--out", "out")
    assert (outcome.code, outcome.err) == (0, "")
    assert "accuracy        100.00 %" in outcome.out


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        (
            "my_data:wine",
            None,
            r"data.name = my_data:wine: no module my_data in .*, and none is installed",
        ),
        ("my_data.sub:wine", "", r"no module my_data.sub in"),
        ("my_data:wine", "beer = 3", "data.name = my_data:wine: the module my_data has no wine"),
        ("my_data:beer", "beer = 3", "data.name = my_data:beer: names a value of type int; must name a function"),
        (
            "my_data:wine",
            "def wine(): return [1]",
            "data.name = my_data:wine: returned list; must return a result of fedacg",
        ),
        (
            "my_data:wine",
            "from fedacg.data import dataset\ndef wine(): return dataset(([[1.0]], [0, 1]), ([[1.0]], [0]))",
            "data.name = my_data:wine: train: x has 1 examples and y has 2",
        ),
        (
            "my data:wine",
            None,
            "data.name = my data:wine: must look like module:function, such as my_package:mine",
        ),
        ("my_data:", None, "data.name = my_data:: must look like module:function"),
        (":wine", None, "data.name = :wine: must look like module:function"),
        (
            "my_data.wine",
            "",
            "unknown data set 'my_data.wine': .*folder.*, or module:function for one of your own",
        ),
    ],
)
def test_a_name_that_leads_nowhere_is_refused(write: Write, name: str, text: str | None, message: str) -> None:
    if text is not None:
        write(text)
    with pytest.raises(InputError, match=message):
        catalogue.load(name)


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("import no_such_thing", ModuleNotFoundError),
        ("from fedacg import no_such_thing", ImportError),
        ("def wine(): return {}['grape']", KeyError),
        ("def wine(): import no_such_thing", ModuleNotFoundError),
        ("wine = 1 / 0", ZeroDivisionError),
    ],
)
def test_a_mistake_in_the_users_module_shows_as_it_is(write: Write, text: str, error: type[Exception]) -> None:
    path = write(text)
    with pytest.raises(error) as raised:
        catalogue.load("my_data:wine")
    assert str(path) in {str(entry.path) for entry in raised.traceback}


def test_augmentation_is_asked_of_the_users_pipeline(write: Write) -> None:
    write(
        """
        import numpy as np
        from fedacg.data import dataset
        from fedacg.data.pipelines import Augment
        from fedacg.data.pipelines import ImagePipeline

        def images():
            x, y = np.zeros((2, 1, 8, 8), dtype=np.uint8), np.array([0, 1])
            augment = Augment(degrees=0, padding=1, flip=False)
            return dataset((x, y), (x, y), pipeline=ImagePipeline((0.5,), (0.5,), augment))

        def plain():
            x, y = np.zeros((2, 1, 8, 8), dtype=np.uint8), np.array([0, 1])
            return dataset((x, y), (x, y))
        """
    )
    for asked, expected in ((True, Augment(degrees=0, padding=1, flip=False)), (False, None)):
        pipeline = catalogue.load("my_data:images", augment=asked).pipeline
        assert isinstance(pipeline, ImagePipeline)
        assert pipeline.augment == expected
    with pytest.raises(InputError, match=r"data.augment = true: own is not augmented; must be false"):
        catalogue.load("my_data:plain", augment=True)


@pytest.mark.parametrize("name", ["digits", "my_data:wine", "synthetic"])
def test_a_path_goes_with_a_folder_only(name: str) -> None:
    settings = DataSettings(name=name, path="/there", clients=3, split="natural")
    with pytest.raises(InputError, match=f"data.path = /there: is for data.name = folder, not for {name}; leave"):
        catalogue.federate(settings, 0)
