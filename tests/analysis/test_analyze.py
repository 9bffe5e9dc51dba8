"""`fedacg analyze` on small runs: what it writes, what it prints, what it refuses."""

import csv
import io
import json
import re
import shutil
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest
import torch
from rich.console import Console
from torch import Tensor, nn

import fedacg as package
from fedacg.analysis.cka import linear_cka
from fedacg.analysis.plane import sample_test
from fedacg.analysis.rounds import divergence_of
from fedacg.analysis.subjects import chosen_round, read
from fedacg.cli.report import Bars
from fedacg.config.methods import method_title
from fedacg.core.vector import FlatModel, clone, pack_vectors
from fedacg.errors import InputError
from fedacg.runs import recording
from fedacg.runs.build import prepare
from fedacg.runs.history import read_metrics
from fedacg.runs.runner import play
from support.command import Command, refused
from support.page import Page
from support.runs import tiny

METHODS = ("fedavgm", "fedcm", "fedacg")
SMALL = ("rounds=4", "analysis.rounds=[2, 4]", "cohort.size=4", "model.hidden=[16, 8]")
FAST = ("--workers", "1", "--resolution", "3", "--examples", "2000")


def run(folder: Path, *settings: str) -> Path:
    folder.parent.mkdir(parents=True, exist_ok=True)
    experiment = tiny(folder.parent, *SMALL, *settings)
    play(experiment, prepare(experiment), folder=folder)
    return folder


@pytest.fixture(scope="module")
def trio(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three methods, recorded in rounds 2 and 4."""
    folder = tmp_path_factory.mktemp("trio")
    for method in METHODS:
        run(folder / method, f"method.name={method}")
    return folder


def rows(path: Path) -> list[dict[str, str]]:
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


@pytest.fixture
def everything(fedacg: Command, trio: Path) -> tuple[Path, str]:
    """Where an analysis of the trio was written, and what was printed."""
    outcome = fedacg("analyze", *(str(trio / method) for method in METHODS), "--out", "an", "--error", *FAST)
    assert outcome.code == 0, outcome
    return fedacg.folder / "an", outcome.out


def local_models(folder: Path, round: int) -> tuple[FlatModel, list[Tensor], recording.Recorded]:
    """The network of a run, and the vectors of a recorded round to put into it."""
    ingredients = prepare(read([folder])[0].experiment)
    recorded = recording.load(folder, round)
    vectors = [recorded.local(place)[0] for place in range(len(recorded.clients))]
    return FlatModel(clone(ingredients.module)), vectors, recorded


def test_one_command_makes_all_pictures_numbers_and_the_page(everything: tuple[Path, str], trio: Path) -> None:
    out, printed = everything
    pictures = {"surface", "surface-error", "divergence", "cka", "stability", "drift"}
    for name in pictures:
        assert (out / f"{name}.png").read_bytes().startswith(b"\x89PNG")
        assert (out / f"{name}.pdf").read_bytes().startswith(b"%PDF")
    tables = {path.stem for path in out.glob("*.csv")}
    assert tables == {"table", "divergence", "cka", "stability", "drift", *(f"surface-{m}" for m in METHODS)}

    text = (out / "index.html").read_text(encoding="utf-8")
    page = Page(text)
    assert "Analysis" in page.words
    images = [value or "" for _, value in page.having("src")]
    assert len(images) == len(pictures) + 2, "the curves and the split are in every report"
    assert all(image.startswith("data:image/png;base64,") for image in images)
    assert sum(bool(value) for _, value in page.having("alt")) >= len(pictures)
    assert {value for _, value in page.having("id")} >= pictures
    assert "default-src 'none'" in text, "the page forbids itself to ask for anything"
    assert not re.search(r"[{}]", " ".join(page.words[page.words.index("Analysis") :])), "all words are filled in"

    _check_trio_numbers(out, trio)
    _check_printed(printed)


def _check_printed(printed: str) -> None:
    lines = printed.splitlines()
    assert max(map(len, lines)) <= 80
    assert re.search(r"^loss surface: about \d+ s$", printed, re.MULTILINE)
    assert [line for line in lines if line.startswith("loss surface of")] == [
        f"loss surface of {method_title(method)}: {2 * (9 + 5)} steps" for method in METHODS
    ]
    assert f"CKA of FedCM: {4 * 2} steps" in lines
    table = next(place for place, line in enumerate(lines) if line.startswith("method"))
    assert [line.split()[0] for line in lines[table + 2 : table + 5]] == list(map(method_title, METHODS))
    heads = " ".join(lines[table - 1 : table + 1])
    assert all(word in heads for word in ("divergence", "cosine", "CKA", "stability"))
    assert "page: an/index.html" in lines


def _check_trio_numbers(out: Path, trio: Path) -> None:
    """Every number that was written against one that was come by in another way."""
    for method in METHODS:
        history, _ = read_metrics(trio / method / "metrics.jsonl")
        drifts = [metrics.drift or {} for metrics in history]

        divergence = [row for row in rows(out / "divergence.csv") if row["method"] == method_title(method)]
        assert [float(row["divergence_relative"]) for row in divergence] == [
            drift["divergence_relative"] for drift in drifts
        ]
        for row, drift in zip(divergence, drifts, strict=True):
            assert [float(row[name]) for name in ("stage_0", "stage_1", "head")] == drift["stages"]
            squares = sum(float(row[name]) ** 2 for name in ("stage_0", "stage_1", "head"))
            assert squares == pytest.approx(float(row["divergence"]) ** 2, rel=1e-4)

        drift = [row for row in rows(out / "drift.csv") if row["method"] == method_title(method)]
        for recorded in (2, 4):
            single = [float(row["cosine"]) for row in drift if row["round"] == str(recorded) and row["client"]]
            (mean,) = [float(r["cosine"]) for r in drift if r["round"] == str(recorded) and not r["client"]]
            assert len(single) == 4
            assert np.mean(single) == pytest.approx(mean, abs=1e-5)

        ema, squares = history.accuracy[0], []
        for accuracy in history.accuracy:
            ema = 0.9 * ema + 0.1 * accuracy
            squares.append((100 * accuracy - 100 * ema) ** 2)
        steady = [row for row in rows(out / "stability.csv") if row["method"] == method_title(method)]
        assert [float(row["squared_deviation_points"]) for row in steady] == pytest.approx(squares, abs=1e-9)

        _check_surface(out / f"surface-{method}.csv", trio / method)


@torch.no_grad()
def _check_surface(table: Path, folder: Path) -> None:
    """The marked points have the loss and the error of the models they stand for."""
    flat, vectors, recorded = local_models(folder, 4)
    data = prepare(read([folder])[0].experiment).data
    parts = [data.clients[client] for client in range(len(data.clients))]
    xs, ys = zip(*(part.fetch(torch.arange(len(part))) for part in parts), strict=True)
    train = torch.cat(xs), torch.cat(ys)
    test = data.test.fetch(torch.arange(len(data.test)))

    def scores(vector: Tensor) -> tuple[float, float]:
        flat.load(vector, recorded.buffers)
        loss = nn.functional.cross_entropy(flat.module(data.pipeline(train[0])), train[1])
        wrong = flat.module(data.pipeline(test[0])).argmax(dim=1) != test[1]
        return float(loss), 100 * float(wrong.double().mean())

    marked = [row for row in rows(table) if row["what"] != "grid"]
    models = [*vectors[:3], torch.stack(vectors[:3]).mean(dim=0), recorded.phi]
    assert [row["what"] for row in marked] == [*["local model"] * 3, "mean", "broadcast"]
    assert [row["client"] for row in marked] == [*map(str, recorded.clients[:3]), "", ""]
    for row, model in zip(marked, models, strict=True):
        loss, error = scores(model)
        assert float(row["loss"]) == pytest.approx(loss, rel=1e-4)
        assert float(row["error"]) == pytest.approx(error, abs=0.3)
    places = np.array([[float(row["x"]), float(row["y"])] for row in marked])
    for (i, one), (j, other) in combinations(enumerate(models[:4]), 2):
        assert np.linalg.norm(places[i] - places[j]) == pytest.approx(float((one - other).norm()), rel=1e-4)
    off = torch.tensor([float(row["off_plane"]) for row in marked])
    aside = float((recorded.phi - models[3]).norm()) ** 2 - np.linalg.norm(places[4] - places[3]) ** 2
    assert off[4] ** 2 == pytest.approx(aside, rel=1e-3)
    assert off[:4].max() < 1e-5 < off[4]

    grid = [row for row in rows(table) if row["what"] == "grid"]
    assert len(grid) == 9
    assert len({(row["x"], row["y"]) for row in grid}) == 9
    along = (models[1] - models[0]).double()
    along /= along.norm()
    across = (models[2] - models[0]).double()
    across -= (across @ along) * along
    across /= across.norm()
    for row in grid:
        point = models[0].double() + float(row["x"]) * along + float(row["y"]) * across
        assert float(row["loss"]) == pytest.approx(scores(point.float())[0], rel=1e-3)


@torch.no_grad()
def test_cka_is_that_of_the_local_models_features(fedacg: Command, trio: Path) -> None:
    arguments = ("analyze", str(trio / "fedcm"), "--what", "cka", "--round", "2", "--examples", "120", "-q")
    outcome = fedacg(*arguments)
    assert (outcome.code, outcome.out) == (0, "analysis/index.html\n")
    found = rows(fedacg.folder / "analysis" / "cka.csv")
    assert [(row["round"], row["layer"]) for row in found] == [("2", n) for n in ("stage 0", "stage 1", "head")]

    subject = read([trio / "fedcm"])[0]
    data = prepare(subject.experiment).data
    chosen = sample_test(data, 120, subject.experiment.seed)
    x = data.pipeline(chosen.fetch(torch.arange(120))[0])
    flat, vectors, recorded = local_models(trio / "fedcm", 2)
    layers = []
    for vector in vectors:
        flat.load(vector, recorded.buffers)
        outputs = [*flat.module.stage_outputs(x), flat.module(x)]
        layers.append([output.double().numpy() for output in outputs])
    expected = [
        np.mean([unbiased_cka(layers[i][depth], layers[j][depth]) for i, j in combinations(range(4), 2)])
        for depth in range(3)
    ]
    assert [float(row["cka"]) for row in found] == pytest.approx(expected, rel=1e-4)


def unbiased_cka(x: np.ndarray, y: np.ndarray) -> float:
    """CKA by Song's unbiased HSIC, term by term."""

    def hsic(a: np.ndarray, b: np.ndarray) -> float:
        n = len(a)
        k, m = a @ a.T, b @ b.T
        np.fill_diagonal(k, 0)
        np.fill_diagonal(m, 0)
        product = k @ m
        whole = k.sum() * m.sum() / ((n - 1) * (n - 2)) - 2 * product.sum() / (n - 2)
        return float(np.trace(product) + whole) / (n * (n - 3))

    return hsic(x, y) / np.sqrt(hsic(x, x) * hsic(y, y))


def test_exact_cka_is_that_of_all_test_examples_at_once(fedacg: Command, trio: Path) -> None:
    folder = trio / "fedcm"
    assert fedacg("analyze", str(folder), "--what", "cka", "--exact", "--examples", "2000").code == 0
    flat, vectors, recorded = local_models(folder, 4)
    data = prepare(read([folder])[0].experiment).data
    x, _ = data.test.fetch(torch.arange(len(data.test)))
    features = []
    for vector in vectors:
        flat.load(vector, recorded.buffers)
        features.append(flat.module(flat.prepare(data.pipeline(x))).detach())
    expected = np.mean([linear_cka(a, b) for a, b in combinations(features, 2)])
    found = {row["layer"]: float(row["cka"]) for row in rows(fedacg.folder / "analysis" / "cka.csv")}
    assert found["head"] == pytest.approx(expected, rel=1e-6)


def test_seeds_of_one_experiment_are_one_line_and_a_panel_each(fedacg: Command, trio: Path) -> None:
    # Which rounds are recorded makes no other experiment.
    other = run(fedacg.folder / "seed5", "method.name=fedavgm", "seed=5", "analysis.rounds=[1, 4]")
    outcome = fedacg("analyze", str(trio / "fedavgm"), str(other), "--what", "surface,stability,drift", *FAST)
    assert outcome.code == 0, outcome
    out = fedacg.folder / "analysis"
    assert {path.name for path in out.glob("surface-*.csv")} == {
        "surface-fedavgm-seed-4.csv",
        "surface-fedavgm-seed-5.csv",
    }
    assert {row["seed"] for row in rows(out / "stability.csv")} == {"4", "5"}
    (row,) = [line for line in outcome.out.splitlines() if line.startswith("FedAvgM ")]
    # Stability, and the losses and the cosine on its sides, as mean and deviation.
    assert len(re.findall(r"\d ±\d", row)) == 4


def test_clients_can_be_chosen(fedacg: Command, trio: Path) -> None:
    clients = recording.load(trio / "fedcm", 4).clients
    chosen = f"{clients[3]},{clients[0]},{clients[2]}"
    outcome = fedacg("analyze", str(trio / "fedcm"), "--what", "surface", "--clients", chosen, "--quiet", *FAST)
    assert outcome.code == 0, outcome
    table = rows(fedacg.folder / "analysis" / "surface-fedcm.csv")
    assert [row["client"] for row in table[:3]] == chosen.split(",")
    _, vectors, _ = local_models(trio / "fedcm", 4)
    apart = float((vectors[3] - vectors[0]).norm())
    assert [float(row["x"]) for row in table[:2]] == pytest.approx([0.0, apart], rel=1e-4)


def test_the_round_is_the_last_that_all_runs_recorded(fedacg: Command, trio: Path) -> None:
    early = run(fedacg.folder / "early", "analysis.rounds=[1, 2]")
    first = run(fedacg.folder / "first", "analysis.rounds=[1]")
    both = read([trio / "fedcm", early])
    assert chosen_round(both, None) == 2
    assert chosen_round(read([trio / "fedcm"]), None) == 4
    with pytest.raises(InputError, match=r"have no recorded round in common.*fedcm has 2, 4; .*first has 1"):
        chosen_round(read([trio / "fedcm", first]), None)
    refused(
        fedacg("analyze", str(trio / "fedcm"), "early", "--round", "4"),
        "--round 4: early did not record it; choose from 1, 2",
    )
    assert not (fedacg.folder / "analysis").exists(), "nothing is written for what cannot be drawn"


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--what", "surfaces"], ["unknown picture 'surfaces'", "did you mean 'surface'?", "cka"]),
        (["--what", " , "], ["--what", "at least one", "stability"]),
        (["--round", "3"], ["--round 3", "did not record it", "choose from 2, 4"]),
        (["--clients", "1,2"], ["--clients 1,2", "three different numbers"]),
        (["--clients", "1,2,2"], ["--clients 1,2,2", "three different numbers"]),
        (["--clients", "1,2,x"], ["--clients '1,2,x'", "whole numbers"]),
        (["--clients", "100,101,102"], ["--clients has 100", "not in the cohort of round 4", "which is"]),
        (["--resolution", "1"], ["--resolution 1", "at least 2"]),
        (["--examples", "3"], ["--examples 3", "at least 4"]),
        (["--margin", "-0.1"], ["--margin -0.1", "at least 0"]),
        (["--margin", "nan"], ["--margin nan", "at least 0"]),
        (["--window", "0.5"], ["--window 0.5", "at least 1"]),
        (["--workers", "-1"], ["--workers -1", "at least 0"]),
    ],
)
def test_what_does_not_fit_is_refused(fedacg: Command, trio: Path, options: list[str], words: list[str]) -> None:
    refused(fedacg("analyze", str(trio / "fedcm"), *options), *words)


def test_a_run_without_recorded_rounds_is_told_how_to_record(fedacg: Command) -> None:
    run(fedacg.folder / "plain", "analysis.rounds=[]")
    words = ["plain: has no recorded rounds", "--set 'analysis.rounds=[4]'", "--what divergence,stability,drift"]
    refused(fedacg("analyze", "plain"), *words)
    refused(fedacg("analyze", "plain", "--round", "3"), "'analysis.rounds=[3]'")
    needs_none = ("analyze", "plain", "--what", "divergence,stability,drift", "--window", "2", "--quiet")
    assert fedacg(*needs_none).code == 0
    assert all(not row["client"] for row in rows(fedacg.folder / "analysis" / "drift.csv"))
    first, second = rows(fedacg.folder / "analysis" / "stability.csv")[:2]
    half = (float(first["accuracy"]) + float(second["accuracy"])) / 2
    assert float(second["moving_average"]) == pytest.approx(half), "a window of 2 rounds is a decay of ½"


def test_a_run_of_an_older_version_is_told_what_it_lacks(fedacg: Command, trio: Path) -> None:
    shutil.copytree(trio / "fedcm", fedacg.folder / "old")
    metrics = fedacg.folder / "old" / "metrics.jsonl"
    (fedacg.folder / "old" / "run.json").unlink()
    lines = [json.loads(line) for line in metrics.read_text().splitlines()]
    metrics.write_text(
        "".join(
            json.dumps({k: v for k, v in line.items() if k not in ("drift", "check")}) + "\n" for line in lines
        )
    )
    for what in ("divergence", "drift"):
        refused(fedacg("analyze", "old", "--what", what), "old:", "do not say how local models spread", "--what")
    assert fedacg("analyze", "old", "--what", "stability", "--quiet").code == 0


def test_different_models_or_data_in_one_surface_are_refused_by_name(fedacg: Command, trio: Path) -> None:
    run(fedacg.folder / "wide", "model.hidden=[32]")
    run(fedacg.folder / "other", "data.name=synthetic", "data.split=natural", "local.steps=1")
    model = fedacg("analyze", str(trio / "fedcm"), "wide", "--what", "surface")
    refused(model, "different models", "mlp hidden=[16, 8]", "mlp hidden=[32] in wide")
    refused(
        fedacg("analyze", str(trio / "fedcm"), "other", "--what", "cka"),
        "different data sets",
        "digits",
        "synthetic",
    )
    drawn = divergence_of(read([fedacg.folder / "wide", fedacg.folder / "other"]))
    assert "stage_0,stage_1,head" in drawn.tables["divergence.csv"]


def test_a_cohort_that_spans_no_plane_is_refused(fedacg: Command) -> None:
    run(fedacg.folder / "two", "cohort.size=2")
    run(fedacg.folder / "one", "cohort.size=1")
    refused(fedacg("analyze", "two"), "two: 2 clients answered in round 4", "takes three")
    refused(fedacg("analyze", "one", "--what", "cka"), "one: 1 clients answered", "compares two")


def test_models_that_span_no_plane_are_refused_with_their_clients(fedacg: Command, trio: Path) -> None:
    folder = Path(shutil.copytree(trio / "fedcm", fedacg.folder / "equal"))
    first, second, third, _ = recording.load(folder, 4).clients
    path = folder / "recorded" / "00004" / f"{third}.safetensors"
    w, buffers = recording.load(folder, 4).local(0)
    path.write_bytes(pack_vectors({"w": w, "buffers": buffers}, {"round": "4", "of": str(third)}))
    refused(
        fedacg("analyze", "equal", "--what", "surface", "--quiet", *FAST),
        f"equal: clients {first}, {second}, {third} of round 4",
        "are equal",
    )


def test_ctrl_c_ends_without_a_traceback(fedacg: Command, trio: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("fedacg.analysis.cka.layerwise", interrupted)
    outcome = fedacg("analyze", str(trio / "fedcm"), "--what", "cka")
    assert (outcome.code, outcome.err) == (130, "")
    assert "Stopped" in outcome.out
    assert list((fedacg.folder / "analysis").iterdir()) == []


def test_a_model_given_from_python_is_refused_where_it_would_have_to_be_built(fedacg: Command) -> None:
    x, y = torch.randn(8, 4), torch.arange(8) % 2
    package.run(model=nn.Linear(4, 2), clients=[(x, y)] * 3, test=(x, y), rounds=2, out="given")
    refused(fedacg("analyze", "given"), "given: model.name = 'python:Linear'", "given from Python", "catalogue")
    assert fedacg("analyze", "given", "--what", "divergence,drift", "--quiet").code == 0


def test_a_place_that_cannot_be_written_is_refused_before_the_work(fedacg: Command, trio: Path) -> None:
    (fedacg.folder / "file").touch()
    refused(fedacg("analyze", str(trio / "fedcm"), "--out", "file"), "file: the analysis cannot be written")


def test_at_a_terminal_there_is_a_bar() -> None:
    screen = io.StringIO()
    with Bars(Console(file=screen, force_terminal=True, width=80)).work("loss surface of mlp [64]", 2) as step:
        step()
        step()
    assert "loss surface of mlp [64]" in screen.getvalue()
    assert "2/2" in screen.getvalue()


@pytest.mark.slow
def test_workers_change_no_number(fedacg: Command, trio: Path) -> None:
    arguments = (
        "analyze",
        str(trio / "fedcm"),
        "--what",
        "surface",
        "--resolution",
        "3",
        "--examples",
        "300",
        "-q",
    )
    assert fedacg(*arguments, "--workers", "1", "--out", "serial").code == 0
    assert fedacg(*arguments, "--workers", "2", "--out", "two").code == 0
    tables = [(fedacg.folder / out / "surface-fedcm.csv").read_bytes() for out in ("serial", "two")]
    assert tables[0] == tables[1]
