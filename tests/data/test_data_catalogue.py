"""The data sets by name, and the federations made of them."""

from pathlib import Path
from typing import Any

import pytest
import torch

from fedacg.config.experiment import parse
from fedacg.config.sections import DataSettings
from fedacg.data import catalogue, splits
from fedacg.data.examples import FederatedData
from fedacg.data.files import data_root
from fedacg.errors import InputError


def digits(**options: Any) -> FederatedData:
    seed = options.pop("seed", 0)
    return catalogue.federate(parse(DataSettings, {"name": "digits", "clients": 10, **options}), seed)


def labels(data: FederatedData) -> list[list[int]]:
    clients = [data.clients[client] for client in range(len(data.clients))]
    return [client.fetch(torch.arange(len(client)))[1].tolist() for client in clients]


def test_digits_are_those_of_scikit_learn(monkeypatch: pytest.MonkeyPatch) -> None:
    from sklearn.datasets import load_digits

    whole, theirs = catalogue.load("digits"), load_digits()
    held = {
        (image.numpy().tobytes(), int(y))
        for part in (whole.train, whole.test)
        for image, y in zip(part.x, part.y, strict=True)
    }
    pairs = zip(theirs.images.astype("uint8"), theirs.target.tolist(), strict=True)
    assert held == {(image.tobytes(), y) for image, y in pairs}
    monkeypatch.setattr("fedacg.data.sources.built_in.find_spec", lambda name: None)
    with pytest.raises(InputError, match="data set 'digits': needs scikit-learn, which is not installed"):
        catalogue.load("digits")


def test_digits_are_cut_into_train_and_test_with_the_same_classes_and_nothing_twice() -> None:
    whole = catalogue.load("digits")
    assert (whole.train.x.shape, whole.test.x.shape) == ((1438, 1, 8, 8), (359, 1, 8, 8))
    assert (len(whole.train), len(whole.test)) == (1438, 359)
    assert whole.train.x.dtype == torch.uint8
    assert whole.train.x.max() == 16
    shares = whole.test.y.bincount() / (whole.train.y.bincount() + whole.test.y.bincount())
    assert torch.allclose(shares, torch.full((10,), 0.2), atol=0.003)
    x = whole.pipeline(whole.train.x)
    assert (x.min(), x.max()) == (0, 1)


def test_clients_are_views_that_hold_the_whole_training_set() -> None:
    data = digits(clients=7)
    assert sum(data.clients.size(client) for client in range(7)) == 1438
    assert (
        sorted(label for client in labels(data) for label in client)
        == catalogue.load("digits").train.y.sort()[0].tolist()
    )
    assert (data.name, data.classes, data.shape, len(data.test)) == ("digits", 10, (1, 8, 8), 359)


def test_the_split_follows_the_seed_and_only_the_seed() -> None:
    torch.manual_seed(1)
    first = labels(digits(seed=4))
    torch.manual_seed(2)
    assert labels(digits(seed=4)) == first
    assert labels(digits(seed=5)) != first


def test_alpha_and_split_reach_the_clients() -> None:
    def together(data: FederatedData) -> float:
        """How large the largest class of a client is, on average."""
        shares = [max(client.count(c) for c in range(10)) / len(client) for client in labels(data)]
        return sum(shares) / len(shares)

    assert together(digits(split="iid")) < 0.2
    assert together(digits(alpha=100.0)) < 0.3
    assert together(digits(alpha=0.01)) > 0.7


def test_a_split_file_takes_the_place_of_the_split(tmp_path: Path) -> None:
    path = tmp_path / "split.npz"
    split = splits.Split(torch.arange(1438).flip(0), torch.tensor([0, 3, 1438]))
    split.save(path)
    data = digits(clients=2, split_file=str(path))
    assert (data.clients.size(0), data.clients.size(1)) == (3, 1435)
    assert labels(data)[0] == catalogue.load("digits").train.y.flip(0)[:3].tolist()
    with pytest.raises(InputError, match=r"has 2 clients where data\.clients = 3"):
        digits(clients=3, split_file=str(path))


def test_augmentation_is_off_unless_asked_for() -> None:
    rng = torch.Generator().manual_seed(0)
    x = catalogue.load("digits").train.x[:20]
    still, moving = digits().pipeline, digits(augment=True).pipeline
    assert torch.equal(still(x, rng), still(x))
    assert not torch.equal(moving(x, rng), still(x))
    assert torch.equal(moving(x), still(x))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"clients": 5000}, r"data.clients = 5000: more clients than examples \(1438\)"),
        ({"clients": 0}, "data.clients = 0: must be at least 1"),
        ({"alpha": 0.0}, "data.alpha = 0: must be greater than 0"),
        ({"split": "natural"}, "data.split = natural: digits does not come with clients"),
        ({"split_file": "/nowhere.npz"}, "data.split_file = /nowhere.npz: there is no such file"),
    ],
)
def test_bad_settings_are_refused_by_name_and_value(options: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        digits(**options)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"split": "iid"}, "data.split = iid: synthetic comes with its clients; must be natural"),
        ({"split_file": "/x.npz"}, "data.split_file = /x.npz: synthetic comes with its clients"),
        ({"augment": True}, "data.augment = true: synthetic is not augmented"),
    ],
)
def test_synthetic_refuses_what_it_has_no_use_for(options: dict[str, Any], message: str) -> None:
    settings = DataSettings(**{"name": "synthetic", "clients": 5, "split": "natural", **options})
    with pytest.raises(InputError, match=message):
        catalogue.federate(settings, 0)


def test_unknown_names_are_refused_with_the_nearest() -> None:
    for ask in (catalogue.load, catalogue.where):
        with pytest.raises(InputError, match="unknown data set 'digit': did you mean 'digits'"):
            ask("digit")


def test_the_data_root_is_what_the_environment_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDACG_DATA", "~/elsewhere")
    assert data_root() == Path.home() / "elsewhere"
    monkeypatch.setenv("FEDACG_DATA", "")
    assert data_root() == Path.home() / ".cache" / "fedacg"
