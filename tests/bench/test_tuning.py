"""Tuning: declared spaces, equal budgets, points drawn once, halving, and what a budget buys."""

import csv
import itertools
import json
import math
from pathlib import Path

import pytest

from fedacg.bench.grid import draw, parse_range, space_of, spread
from fedacg.bench.tuning import RATES, Study, expected_best, rungs, score, tune
from fedacg.config.experiment import Experiment
from fedacg.config.methods import METHODS, MODIFIERS
from fedacg.config.recipe import Tree, read_toml
from fedacg.errors import InputError, RunError
from fedacg.report.runs import load_run
from fedacg.runs.history import History
from fedacg.simulation.metrics import RoundMetrics
from support.command import Command, refused

TREE: Tree = {"rounds": 9, "data": {"clients": 20}, "cohort": {"size": 3}}


def test_every_search_set_lies_in_the_range_of_its_option() -> None:
    owners = [*METHODS.values(), *MODIFIERS.values()]
    wrong = [
        (owner.name, name, value)
        for owner in owners
        for name, option in owner.options.items()
        for value in option.search
        if not option.admits(value)
    ]
    assert wrong == []
    assert [
        o.name
        for o in owners
        for option in o.options.values()
        if option.search and option.default not in option.search
    ] == []


def test_a_space_has_the_papers_search_sets_and_the_learning_rates() -> None:
    space = space_of("fedacg", TREE, ["0.03", "0.1"], {"local.clip": ("0", "10")})
    assert space == {
        "local.lr": ("0.03", "0.1"),
        "method.lam": ("0.8", "0.85", "0.9"),
        "method.beta": ("0.1", "0.01", "0.001"),
        "local.clip": ("0", "10"),
    }
    assert list(space_of("fedacg:beta=0.01", TREE, [], {})) == ["method.lam"]
    assert list(space_of("fedprox+acg", TREE, [], {})) == ["method.mu", "method.lam"]


def test_points_are_drawn_without_replacement_and_always_the_same() -> None:
    space = space_of("fedacg", TREE, ["0.03", "0.1"], {})
    points = draw("fedacg", space, 10, seed=0)
    assert len({tuple(point.items()) for point in points}) == 10
    assert points == draw("fedacg", space, 10, seed=0) != draw("fedacg", space, 10, seed=1)
    every = {tuple(point.values()) for point in draw("fedacg", space, 1000, seed=0)}
    assert every == set(itertools.product(*space.values()))


def test_a_range_gives_every_method_as_many_trials_and_the_same_values() -> None:
    spaces = {method: space_of(method, TREE, RATES, {}) for method in ("fedavg", "fedavgm", "fedacg")}
    drawn = {method: draw(method, space, 12, seed=0) for method, space in spaces.items()}
    rates = {method: [point["local.lr"] for point in points] for method, points in drawn.items()}
    for method, points in drawn.items():
        assert len({tuple(point.items()) for point in points}) == 12
        assert [list(point) for point in points] == [list(spaces[method])] * 12
        assert points == draw(method, spaces[method], 12, seed=0)
    assert sorted(rates["fedavg"]) == sorted(rates["fedavgm"]) == sorted(rates["fedacg"])
    assert rates["fedavg"] != rates["fedacg"], "each has an order of its own, or rates go with places in the lists"
    parts = [int(12 * math.log(float(rate) / 0.003) / math.log(100)) for rate in rates["fedavg"]]
    assert sorted(parts) == list(range(12)), "one rate in each twelfth of the logarithm"
    pairs = [(point["method.lam"], point["method.beta"]) for point in drawn["fedacg"]]
    assert len(set(pairs)) == 9, "all points of the lists come once before any comes twice"
    assert draw("fedavg", spaces["fedavg"], 12, seed=1) != drawn["fedavg"]


def test_the_values_of_a_range_by_hand() -> None:
    assert spread((0.01, 1.0), [0.5, 0.0, 1.0]) == ["0.02154", "0.04642", "1"]
    assert parse_range("local.lr", ("0.01", "0.1")) is None
    assert parse_range("local.lr", ("0.01..0.5",)) == (0.01, 0.5)


@pytest.mark.parametrize("text", ["0.1..", "..1", "0.3..0.01", "0..1", "-1..1", "1..inf", "a..b", "1..2..3"])
def test_what_is_no_range_is_refused(text: str) -> None:
    with pytest.raises(InputError, match=r"local\.lr.*two numbers above 0"):
        parse_range("local.lr", (text,))
    with pytest.raises(InputError, match="stands alone"):
        parse_range("local.lr", ("0.1", "0.003..0.3"))


@pytest.mark.parametrize(("rounds", "stages"), [(90, [10, 30, 90]), (9, [1, 3, 9]), (2, [1, 2]), (1, [1])])
def test_halving_has_stages_of_a_ninth_a_third_and_all(rounds: int, stages: list[int]) -> None:
    assert rungs("halving", rounds) == stages
    assert rungs("random", rounds) == [rounds]


def test_the_expected_best_is_the_mean_over_all_draws() -> None:
    scores = [0.2, 0.9, 0.5, 0.5]
    for n in (1, 2, 3):
        draws = [max(drawn) for drawn in itertools.product(scores, repeat=n)]
        assert expected_best(scores, n) == pytest.approx(sum(draws) / len(draws))
    assert expected_best(scores, 1) == pytest.approx(0.525)


def history(**scores: list[float]) -> History:
    rounds = len(next(iter(scores.values())))
    return History(
        RoundMetrics(
            number, 0.1, (0,), 1, 1.0, 1, 1, 0.1, 0.1, test_accuracy=1.0,
            scores={name.replace("_", "/"): values[number - 1] for name, values in scores.items()},
        )
        for number in range(1, rounds + 1)
    )  # fmt: skip


def test_a_trial_is_judged_by_validation_alone() -> None:
    assert score(history(validation_accuracy=[0.5, 0.7]), 2) == pytest.approx(0.5 * 0.9 + 0.7 * 0.1)
    assert score(history(validation_accuracy=[0.7, 0.5]), 2) == pytest.approx(0.7 * 0.9 + 0.5 * 0.1), "at the end"
    assert score(history(validation_loss=[2.0, 2.0]), 2) == -2.0
    assert score(history(validation_accuracy=[0.5]), 2) == -math.inf
    with pytest.raises(InputError, match=r"data\.validation"):
        score(history(test_f1=[0.5]), 1)


def test_the_last_stage_chooses_among_those_that_got_there(tmp_path: Path) -> None:
    study = Study(TREE, ["fedavg"], tmp_path, trials=4, strategy="halving")
    first, short, better, diverged = study.trials["fedavg"]
    first.scores, short.scores = [0.9, 0.9, 0.5], [0.95, 0.99]
    better.scores, diverged.scores = [0.7, 0.8, 0.6], [0.1]
    assert study._chosen("fedavg").best is better
    first.scores[-1] = better.scores[-1] = -math.inf
    with pytest.raises(RunError, match="no trial of fedavg got to its last round"):
        study._chosen("fedavg")


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"methods": []}, "needs at least one"),
        ({"methods": ["fedavg", "fedavg"]}, "is given twice"),
        ({"methods": ["fedavg"], "trials": 0}, "at least 1"),
        ({"methods": ["fedavg"], "strategy": "luck"}, "random or halving"),
        ({"methods": ["fedavg"], "rates": ["-1"]}, r"local\.lr"),
        ({"methods": ["fedavg"], "more": {"local.nonsense": ("1",)}}, r"local\.nonsense"),
        ({"methods": ["nonsense"]}, "nonsense"),
    ],
)
def test_what_cannot_be_tuned_is_refused_before_anything_is_played(
    given: dict, words: str, tmp_path: Path
) -> None:
    with pytest.raises(InputError, match=words):
        Study({**TREE, "data": {"clients": 20, "validation": 0.1}}, **{"out": tmp_path, **given})


def test_tuning_ends_with_tables_and_experiments_that_can_be_run(fedacg: Command) -> None:
    settings = ("-n", "3", "--lr", "0.03,0.1,0.3", "-s", "rounds=3", "--out", "out")
    arguments = ("tune", "tiny.toml", "-m", "fedavg,fedacg:beta=0.01", *settings)
    outcome = fedacg(*arguments)
    assert (outcome.code, outcome.err) == (0, "")
    out = fedacg.folder / "out"
    rows = list(csv.DictReader((out / "tune.csv").read_text(encoding="utf-8").splitlines()))
    assert [row["method"] for row in rows] == ["fedavg"] * 3 + ["fedacg:beta=0.01"] * 3
    for method in ("fedavg", "fedacg:beta=0.01"):
        mine = [row for row in rows if row["method"] == method]
        (chosen,) = [row for row in mine if row["chosen"] == "1"]
        assert float(chosen["validation"]) == max(float(row["validation"]) for row in mine)
        assert [row["test_accuracy"] != "" for row in mine] == [row is chosen for row in mine]
    looks = {len(load_run(folder).history.accuracy) for folder in (out / "runs").iterdir()}
    assert looks == {1}, "a trial looks at the test set after its last round, and at no other time"
    tuned = Experiment.parse(read_toml(out / "tuned-fedavg.toml"))
    assert tuned.data.validation == 0
    assert f"lr={tuned.local.lr:g}" == next(row["settings"] for row in rows if row["chosen"] == "1")
    assert json.loads((out / "card.json").read_text(encoding="utf-8"))["budget"]["runs"] == 6
    again = fedacg(*arguments, "--quiet")
    assert (again.code, len(list((out / "runs").iterdir()))) == (0, 6)


def test_halving_plays_few_trials_to_the_end_and_python_gives_the_same(fedacg: Command) -> None:
    (found,) = tune("tiny.toml", ["fedavg"], trials=4, strategy="halving", lr=[0.01, 0.1, 0.3, 1e30], out="halved")
    lengths = sorted(len(trial.runs) for trial in found.trials)
    assert lengths == [1, 1, 1, 3]
    short = [trial.scores[0] for trial in found.trials]
    assert found.best.scores[0] == max(short)
    assert [trial.settings["local.lr"] for trial in found.trials if trial.scores == [-math.inf]] == ["1e+30"]
    again = fedacg(
        "tune", "tiny.toml", "-m", "fedavg", "-n", "4", "--strategy", "halving", "--lr", "0.01,0.1,0.3,1e+30",
        "--out", "halved", "--quiet", "--resume",
    )  # fmt: skip
    assert again.code == 0
    assert "1e+30" not in (fedacg.folder / "halved" / "tuned-fedavg.toml").read_text()


def test_a_stopped_trial_is_resumed_only_when_asked(fedacg: Command) -> None:
    arguments = ("tune", "tiny.toml", "-m", "fedavg", "-n", "2", "-s", "rounds=2", "--out", "out", "-q")
    assert fedacg(*arguments).code == 0
    (fedacg.folder / "out" / "runs" / "fedavg-t02-r2" / "summary.json").unlink()
    refused(fedacg(*arguments), "--resume")
    assert fedacg(*arguments, "--resume").code == 0


def test_what_was_chosen_is_compared_over_seeds_on_all_training_data(fedacg: Command) -> None:
    settings = ("-n", "2", "-s", "rounds=4", "-s", "evaluate.every=2", "--seeds", "5,6,7", "--out", "out", "-q")
    assert fedacg("tune", "tiny.toml", "-m", "fedavg,fedacg", *settings).code == 0
    out = fedacg.folder / "out"
    finals = {path.parent.name: read_toml(path) for path in (out / "final").rglob("experiment.toml")}
    assert sorted(finals) == [f"{method}-s{seed}" for method in ("fedacg", "fedavg") for seed in (5, 6, 7)]
    for name, tree in finals.items():
        method, _, seed = name.partition("-s")
        tuned = read_toml(out / f"tuned-{method}.toml")
        assert (tree.pop("seed"), tree["data"]["validation"], tree["evaluate"]["test"]) == (int(seed), 0, "every")
        assert {**tree, "seed": 4} == tuned, "only the seed differs from what was chosen"
    rows = list(csv.DictReader((out / "table.csv").read_text(encoding="utf-8").splitlines()))
    assert [(row["method"], row["seeds"]) for row in rows] == [("fedavg", "3"), ("fedacg", "3")]
    (pair,) = csv.DictReader((out / "differences.csv").read_text(encoding="utf-8").splitlines())
    assert pair["pairs"] == "3"
    assert json.loads((out / "card.json").read_text(encoding="utf-8"))["budget"]["runs"] == 4 + 6


def test_another_study_gets_a_folder_of_its_own(fedacg: Command) -> None:
    def play(*more: str) -> list[str]:
        outcome = fedacg("tune", "tiny.toml", "-m", "fedavg", "-n", "2", "-s", "rounds=3", *more, "-q")
        assert outcome.code == 0, outcome.err
        assert outcome.out.count("index.html") == 1
        return sorted(path.name for path in (fedacg.folder / "runs").iterdir())

    assert play() == ["tiny-tune"]
    assert play() == ["tiny-tune"], "the same trials are found again"
    assert play("-s", "local.batch=7") == ["tiny-tune", "tiny-tune-2"]
    assert play("-s", "local.batch=7", "--strategy", "halving") == ["tiny-tune", "tiny-tune-2"], "the same trials"
    assert play("-m", "fedavgm") == ["tiny-tune", "tiny-tune-2"], "another method with the settings of the first"


def test_every_trial_is_logged(fedacg: Command) -> None:
    arguments = ("tune", "tiny.toml", "-m", "fedavg", "-n", "2", "-s", "rounds=1", "--out", "out", "-q")
    assert fedacg(*arguments, "--log", "tensorboard").code == 0
    runs = {path.parent for path in (fedacg.folder / "out" / "runs").rglob("metrics.jsonl")}
    assert len(runs) == 2
    assert all((run / "tensorboard").is_dir() for run in runs)
