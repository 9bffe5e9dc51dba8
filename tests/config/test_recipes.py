"""The recipes are the settings of the paper's protocol, each at paper scale and at small scale."""

import re
from importlib import resources
from pathlib import Path

import pytest

from fedacg.config.experiment import Experiment
from fedacg.config.recipe import find, recipe_names
from fedacg.data.catalogue import FACTS
from fedacg.errors import InputError

MODERATE, LARGE = (100, 5), (500, 10)
IMAGES = {
    # recipe: clients, a round, split, alpha, targets in percent
    "cifar10-moderate": (*MODERATE, "dirichlet", 0.3, (81, 85)),
    "cifar100-moderate": (*MODERATE, "dirichlet", 0.3, (47, 55)),
    "tiny-imagenet-moderate": (*MODERATE, "dirichlet", 0.3, (35, 38)),
    "cifar10-large": (*LARGE, "dirichlet", 0.3, (73, 77)),
    "cifar100-large": (*LARGE, "dirichlet", 0.3, (36, 40)),
    "tiny-imagenet-large": (*LARGE, "dirichlet", 0.3, (24, 30)),
    "cifar10-moderate-dirichlet06": (*MODERATE, "dirichlet", 0.6, (81, 87)),
    "cifar100-moderate-dirichlet06": (*MODERATE, "dirichlet", 0.6, (50, 56)),
    "cifar10-large-dirichlet06": (*LARGE, "dirichlet", 0.6, (69, 80)),
    "cifar100-large-dirichlet06": (*LARGE, "dirichlet", 0.6, (32, 41)),
    "cifar10-moderate-iid": (*MODERATE, "iid", 0.3, (82, 89)),
    "cifar100-moderate-iid": (*MODERATE, "iid", 0.3, (52, 58)),
    "cifar10-large-iid": (*LARGE, "iid", 0.3, (75, 83)),
    "cifar100-large-iid": (*LARGE, "iid", 0.3, (33, 42)),
    "cifar10-moderate-low": (100, 2, "dirichlet", 0.3, (78,)),
    "cifar100-moderate-low": (100, 2, "dirichlet", 0.3, (44,)),
    "cifar10-large-low": (500, 5, "dirichlet", 0.3, (68,)),
    "cifar100-large-low": (500, 5, "dirichlet", 0.3, (35,)),
    "cifar100-dynamic": (*LARGE, "dirichlet", 0.3, (30, 38)),
}
LEAF = {
    # recipe: clients (0: all), rounds, network, targets in percent
    "femnist": (2000, 500, "femnist-cnn", (78,)),
    "celeba": (2000, 500, "celeba-cnn", (88,)),
    "shakespeare": (0, 1000, "lstm", (42, 45)),
}


def described(name: str) -> Experiment:
    return Experiment.parse(find(name))


def test_there_is_a_recipe_for_every_setting_of_the_protocol_at_both_scales() -> None:
    paper = {*IMAGES, *LEAF}
    beyond = {"quickstart", "mnist-small", "fashion-mnist-small", "cifar10-visits-small"}
    assert set(recipe_names()) == {*beyond, *paper, *(f"{name}-small" for name in paper)}


def test_the_recipe_of_many_visits_has_the_papers_number_of_them_and_of_steps() -> None:
    experiment = described("cifar10-visits-small")
    visits = experiment.rounds * experiment.cohort.size / experiment.data.clients
    assert visits == 1000 * LARGE[1] / LARGE[0] == 20
    assert experiment.local.steps_for(50_000 // experiment.data.clients) == 50


@pytest.mark.parametrize("name", ["mnist", "fashion-mnist"])
def test_mnist_and_fashion_mnist_have_small_recipes(name: str) -> None:
    experiment = described(f"{name}-small")
    assert (experiment.data.name, experiment.model.name, experiment.method.name) == (name, "cnn", "fedacg")
    assert (experiment.data.clients, experiment.cohort.size) == MODERATE
    assert experiment.rounds <= 100
    assert experiment.local.steps_for(60_000 // 100) == 60


def test_small_recipes_still_go_by_their_old_names(tmp_path: Path) -> None:
    for name in (name for name in recipe_names() if name.endswith("-small")):
        assert find(f"{name.removesuffix('-small')}-desk") == find(name)
    (tmp_path / "mine.toml").write_text('extends = "cifar10-large-desk"\nrounds = 7\n')
    assert described(str(tmp_path / "mine.toml")).data == described("cifar10-large-small").data
    with pytest.raises(InputError, match="unknown recipe 'quickstart-desk'"):
        find("quickstart-desk")


def test_celeba_trains_at_the_rate_that_was_found_for_it() -> None:
    for name in ("celeba", "celeba-small", "celeba-desk"):
        assert described(name).local.lr == 0.01


@pytest.mark.parametrize("name", IMAGES)
def test_image_recipes_are_the_protocols(name: str) -> None:
    clients, size, split, alpha, targets = IMAGES[name]
    experiment = described(name)
    data, local = experiment.data, experiment.local
    assert (data.clients, experiment.cohort.size, data.split, data.alpha) == (clients, size, split, alpha)
    assert experiment.evaluate.targets == tuple(percent / 100 for percent in targets)
    assert (experiment.rounds, experiment.model.name, data.augment) == (1000, "resnet18", True)
    assert (local.lr, local.lr_decay, local.weight_decay, local.clip, local.momentum) == (0.1, 0.998, 0.001, 10, 0)
    assert (experiment.method.name, experiment.evaluate.every) == ("fedacg", 1)
    source = FACTS[data.name].source
    assert source is not None
    assert source.published.train is not None
    assert local.epochs == 5
    assert local.steps_for(source.published.train // clients) == 50, "always fifty local steps"


def test_the_changing_population_is_the_protocols() -> None:
    paper, small = described("cifar100-dynamic"), described("cifar100-dynamic-small")
    assert (paper.population.present, paper.population.stage, paper.population.replace) == (250, 100, 0.5)
    for experiment in (paper, small):
        assert experiment.rounds == 10 * experiment.population.stage, "ten stages"


@pytest.mark.parametrize("name", LEAF)
def test_leaf_recipes_are_the_protocols(name: str) -> None:
    clients, rounds, network, targets = LEAF[name]
    experiment = described(name)
    assert (experiment.data.name, experiment.data.clients, experiment.data.split) == (name, clients, "natural")
    assert (experiment.rounds, experiment.model.name) == (rounds, network)
    assert experiment.evaluate.targets == tuple(percent / 100 for percent in targets)
    if name == "shakespeare":
        assert (experiment.cohort.fraction, experiment.cohort.size) == (0.05, 0)
    else:
        assert experiment.cohort.size == 5


@pytest.mark.parametrize("name", [*IMAGES, *LEAF])
def test_a_small_recipe_has_the_same_clients_and_less_work(name: str) -> None:
    paper, small = described(name), described(f"{name}-small")
    assert small.rounds <= 100
    # At small scale, the number of LEAF clients is however many are available.
    same = {"data": {"clients"} if name in LEAF else set[str]()}
    kept = ("data", "method", "failures") if name in LEAF else ("data", "method", "cohort", "failures")
    for section in kept:
        ours, theirs = (getattr(e, section).model_dump(exclude=same.get(section)) for e in (small, paper))
        assert ours == theirs, section
    assert small.model.name in ("cnn", "lstm")


def test_a_file_extends_another_by_name_or_by_path(tmp_path: Path) -> None:
    (tmp_path / "base.toml").write_text('extends = "quickstart"\nrounds = 7\n[local]\nlr = 0.5\n')
    (tmp_path / "mine.toml").write_text('extends = "base.toml"\nseed = 3\n[model]\nname = "logistic"\n')
    experiment = described(str(tmp_path / "mine.toml"))
    assert (experiment.seed, experiment.rounds, experiment.local.lr) == (3, 7, 0.5)
    assert experiment.local.batch == described("quickstart").local.batch
    assert experiment.model.options == {}, "another model has other options"


@pytest.mark.parametrize(
    ("extends", "message"),
    [
        ('"quickstat"', "unknown recipe 'quickstat': did you mean 'quickstart'"),
        ('"mine.toml"', "extend each other in a circle"),
        ('"nowhere.toml"', "nowhere.toml: cannot be read"),
        ("3", "extends = 3: must be the name of a recipe or of a file"),
    ],
)
def test_what_cannot_be_extended_is_told(tmp_path: Path, extends: str, message: str) -> None:
    (tmp_path / "mine.toml").write_text(f"extends = {extends}\n")
    with pytest.raises(InputError, match=message):
        find(str(tmp_path / "mine.toml"))


def test_every_rate_says_where_it_comes_from() -> None:
    """A recipe that sets its rate says by what it was chosen, or that it was not tuned on its data."""
    for path in sorted(Path(str(resources.files("fedacg.config.recipes"))).glob("*.toml")):
        text = path.read_text(encoding="utf-8")
        if "\nlr = " in text:
            said = [line for line in text.splitlines() if line.startswith("# ") and " rate " in f"{line} "]
            assert any(re.search(r"chosen|best of|the paper's|that of|never tuned", line) for line in said), (
                path.name
            )
        if path.stem.startswith(("cifar100", "tiny-imagenet", "mnist", "fashion")) and "\nlr = " in text:
            assert "never tuned" in text, path.name
