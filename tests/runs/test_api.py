"""`fedacg.run`: any model, any data, from Python."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import parameters_to_vector

import fedacg
from fedacg import InputError, Result
from fedacg.config.experiment import Experiment
from fedacg.config.recipe import read_toml
from fedacg.core.vector import sha256
from fedacg.data import MappedExamples
from fedacg.runs.build import prepare
from fedacg.runs.runner import play
from fedacg.simulation.metrics import RoundMetrics

Pair = tuple[Tensor, Tensor]


def clients(sizes: tuple[int, ...] = (8, 5, 12, 9), dtype: torch.dtype = torch.float32) -> list[Pair]:
    """Two classes that a line parts."""
    source = torch.Generator().manual_seed(3)
    inputs = [torch.randn(n, 4, generator=source, dtype=dtype) for n in sizes]
    return [(x, (x.sum(1) > 0).long()) for x in inputs]


def linear(dtype: torch.dtype = torch.float32, outputs: int = 2) -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return nn.Linear(4, outputs, dtype=dtype)


def run(**options: Any) -> Result:
    settings: dict[str, Any] = {
        "model": linear(),
        "clients": clients(),
        "test": clients((50,))[0],
        "rounds": 3,
        "participation": 0.5,
        "local_epochs": 1,
        "batch_size": 4,
    }
    return fedacg.run(**(settings | options))


def test_five_lines_are_enough() -> None:
    data = clients((20,) * 6)
    net = linear()
    result = fedacg.run(model=net, clients=data, test=data[0], method="fedacg", rounds=10)
    assert len(result.history) == 10
    assert result.history.accuracy[-1] > 0.8
    assert result.summary["method"] == "fedacg"
    assert result.folder is None


def test_the_users_model_and_torchs_state_are_left_alone() -> None:
    net = nn.Sequential(nn.BatchNorm1d(4), nn.Dropout(), linear()).eval()
    before = {name: value.clone() for name, value in net.state_dict().items()}
    addresses = [p.data_ptr() for p in net.parameters()]
    torch.manual_seed(9)
    expected = torch.rand(3)
    torch.manual_seed(9)
    threads = torch.get_num_threads()
    result = run(model=net, clients=clients((8, 6, 12, 9)), batch_size=3, cohorts=[[1, 2], [1, 3], [2, 3]])
    assert torch.equal(torch.rand(3), expected), "the global generator"
    assert torch.get_num_threads() == threads
    assert all(torch.equal(value, before[name]) for name, value in net.state_dict().items())
    assert [p.data_ptr() for p in net.parameters()] == addresses
    assert all(p.grad is None for p in net.parameters())
    assert not net.training
    assert result.model is not net


@pytest.mark.parametrize("channels_last", [False, True])
def test_the_results_model_has_the_results_vector(channels_last: bool) -> None:
    net = nn.Sequential(nn.Conv2d(3, 4, 2), nn.Flatten(), nn.Linear(4, 2))
    images = [(torch.randn(6, 3, 2, 2), torch.arange(6) % 2) for _ in range(3)]
    result = run(model=net, clients=images, test=images[0], channels_last=channels_last)
    assert torch.equal(parameters_to_vector(result.model.parameters()), result.vector)
    assert not torch.equal(parameters_to_vector(net.parameters()), result.vector)
    assert result.summary["vector_sha256"] == sha256(result.vector)
    assert all(p.is_contiguous() and p.grad is None for p in result.model.parameters())


def test_arrays_do_as_well_as_tensors() -> None:
    arrays = [(x.numpy(), y.numpy().astype(np.int32)) for x, y in clients()]
    for array, _ in arrays:
        array.setflags(write=False)
    found = run(clients=arrays, test=(arrays[0][0], arrays[0][1].tolist()))
    assert torch.equal(found.vector, run().vector)


def test_numpys_numbers_do_as_well_as_pythons() -> None:
    found = run(rounds=np.int64(2), seed=np.int64(3), lr=np.float64(0.1), participation=np.float32(0.5))
    assert torch.equal(found.vector, run(rounds=2, seed=3).vector)


def test_a_double_model_trains_in_double() -> None:
    seen = set()

    def loss(outputs: Tensor, y: Tensor) -> Tensor:
        seen.add(outputs.dtype)
        return nn.functional.cross_entropy(outputs, y)

    result = run(model=linear(torch.float64), loss=loss, method="fedacg")
    assert seen == {torch.float64}
    assert result.vector.dtype == torch.float64
    assert not torch.equal(result.vector, result.vector.float().double())
    assert result.history[0].bytes_up == 2 * 8 * result.vector.numel()


def test_images_may_be_bytes() -> None:
    images = [(torch.randint(256, (6, 1, 3, 3), dtype=torch.uint8), torch.arange(6) % 2) for _ in range(3)]
    floats = [(x.float() / 255, y) for x, y in images]
    net = nn.Sequential(nn.Flatten(), nn.Linear(9, 2))
    found, expected = (run(model=net, clients=data, test=data[0]).vector for data in (images, floats))
    assert torch.equal(found, expected)


@pytest.mark.parametrize("labels", [torch.float32, torch.float64])
def test_a_regression_with_a_loss_of_ones_own(labels: torch.dtype) -> None:
    truth = torch.tensor([1.0, -2.0, 0.5, 3.0])
    data = [(x, (x @ truth).to(labels)) for x, _ in clients((20,) * 4)]

    def squared(outputs: Tensor, y: Tensor) -> Tensor:
        return (outputs.squeeze(1) - y).square().mean()

    result = run(model=linear(outputs=1), clients=data, test=data[0], loss=squared, rounds=60, lr=0.05)
    assert result.vector.dtype == torch.float32
    assert torch.allclose(result.vector[:4], truth, atol=0.01)
    last = result.history[-1].test_loss
    assert last is not None
    x, y = data[0]
    assert last == pytest.approx(squared(result.model(x), y).item(), rel=1e-4)


class Squares:
    """A map-style data set that is nowhere in memory."""

    def __len__(self) -> int:
        return 40

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        return torch.tensor([index, index**2, 1, -index]) / 40, index % 2


def test_a_map_style_data_set_with_an_index_per_client() -> None:
    mapped = [MappedExamples(Squares(), range(first, 40, 4)) for first in range(4)]
    pairs = [each.fetch(torch.arange(len(each))) for each in mapped]
    found, expected = (run(clients=data, test=data[0]).vector for data in (mapped, pairs))
    assert torch.equal(found, expected)


@pytest.mark.parametrize("kind", ["lists", "arrays", "tensors"])
def test_cohorts_say_who_takes_part(kind: str, tmp_path: Path) -> None:
    listed = [[0, 1], [3, 1], [2, 0]]
    cohorts: Any = {"lists": listed, "arrays": np.array(listed), "tensors": torch.tensor(listed)}[kind]
    result = run(cohorts=cohorts, out=tmp_path / "run")
    assert [metrics.cohort for metrics in result.history] == [(0, 1), (3, 1), (2, 0)]
    assert [metrics.examples for metrics in result.history] == [13, 14, 20]


def test_a_replay_of_the_cohorts_that_were_sampled_gives_the_same_bits() -> None:
    sampled = run(rounds=5)
    replayed = run(rounds=5, cohorts=[metrics.cohort for metrics in sampled.history])
    assert torch.equal(replayed.vector, sampled.vector)


@pytest.mark.parametrize(
    ("cohorts", "message"),
    [
        ([[0], [], [1]], "cohorts: round 2 has no clients"),
        ([[0], [1], [2, 2]], "cohorts: round 3 names a client twice"),
        ([[0, 4], [1], [2]], "cohorts: round 1 names client 4, must be from 0 to 3"),
        ([[-1], [1], [2]], "cohorts: round 1 names client -1, must be from 0 to 3"),
        ([[0.5], [1], [2]], r"cohorts: round 1 is \[0.5\], must be the numbers of clients"),
        ([0, 1, 2], "cohorts: round 1 is 0, must be the numbers of clients"),
        ([[0], [1]], "cohorts: are given for 2 rounds, but rounds = 3"),
        ([], "cohorts: are given for 0 rounds, but rounds = 3"),
    ],
)
def test_cohorts_that_cannot_be_are_refused(cohorts: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        run(cohorts=cohorts)


def test_participation_and_cohort_size_say_how_many() -> None:
    data = clients((4,) * 10)
    assert [len(m.cohort) for m in run(clients=data, participation=0.3).history] == [3, 3, 3]
    assert [len(m.cohort) for m in run(clients=data, participation=0.3, cohort_size=7).history] == [7, 7, 7]
    assert [len(m.cohort) for m in run(clients=data, participation=0.01).history] == [1, 1, 1]
    assert [m.cohort for m in run(clients=data, participation=1.0).history] == [tuple(range(10))] * 3


@pytest.mark.parametrize(("weights", "shares"), [("examples", (2 / 20, 18 / 20)), ("uniform", (0.5, 0.5))])
def test_updates_weigh_by_examples_or_all_the_same(weights: str, shares: tuple[float, float]) -> None:
    net = linear(torch.float64)
    data = clients((2, 18), torch.float64)
    common: dict[str, Any] = {"model": net, "clients": data, "test": data[0], "method": "fedavg", "rounds": 1}
    start = parameters_to_vector(net.parameters()).detach()
    alone = [run(**common, cohorts=[[client]]).vector - start for client in (0, 1)]
    both = run(**common, cohorts=[[0, 1]], weights=weights).vector - start
    assert torch.allclose(both, shares[0] * alone[0] + shares[1] * alone[1], rtol=0, atol=1e-14)


def interrupted(after: int, **arguments: Any) -> None:
    """A run whose caller makes a mistake after so many rounds."""

    def stop(metrics: RoundMetrics) -> None:
        if metrics.round == after:
            raise RuntimeError("the user's own mistake")

    with pytest.raises(RuntimeError, match="the user's own mistake"):
        run(**arguments, on_round=stop)


def test_a_run_that_was_interrupted_is_resumed_to_the_bit(tmp_path: Path) -> None:
    whole = run(rounds=6, method="fedacg")
    interrupted(4, rounds=6, method="fedacg", out=tmp_path / "run")
    seen: list[int] = []
    resumed = run(
        rounds=6,
        method="fedacg",
        out=tmp_path / "run",
        resume=True,
        on_round=lambda metrics: seen.append(metrics.round),
    )
    assert seen == [5, 6]
    assert torch.equal(resumed.vector, whole.vector)
    assert resumed.history.accuracy == whole.history.accuracy
    assert resumed.folder == tmp_path / "run"
    assert {path.name for path in (tmp_path / "run").iterdir()} >= {"summary.json", "checkpoint.safetensors"}


@pytest.mark.parametrize("other", [[[0, 1], [2, 3], [0, 2]], None])
def test_a_run_is_not_resumed_with_other_cohorts(tmp_path: Path, other: Any) -> None:
    cohorts = [[0, 1], [1, 2], [0, 2]]
    interrupted(2, cohorts=cohorts, out=tmp_path / "run")
    with pytest.raises(InputError, match=r"^cohorts: round \d asked clients \[\d, \d\], but "):
        run(cohorts=other, out=tmp_path / "run", resume=True)
    whole = run(cohorts=cohorts)
    assert torch.equal(run(cohorts=cohorts, out=tmp_path / "run", resume=True).vector, whole.vector)


def test_a_run_is_not_resumed_with_another_model(tmp_path: Path) -> None:
    run(out=tmp_path / "run")
    with pytest.raises(InputError, match=r"the checkpoint does not match: m is .*\(10,\).* there and .*\(15,\)"):
        run(out=tmp_path / "run", resume=True, model=linear(outputs=3))
    with pytest.raises(InputError, match=r"model.name is \"python:Linear\" there and \"python:Sequential\" here"):
        run(out=tmp_path / "run", resume=True, model=nn.Sequential(linear()))


SCRIPT = """
import sys
import torch
from torch import nn
import fedacg

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.one, self.two = nn.Linear(4, 8), nn.Linear(8, 2)

    def forward(self, x):
        return self.two(squash(self.one(x)))

def squash(x):
    return torch.tanh(SCALE * x)

def loss(outputs, y):
    return SCALE * nn.functional.cross_entropy(outputs, y)

SCALE = 0.5
print("started")
torch.manual_seed(0)
net = Net()
clients = [(torch.randn(n, 4), torch.arange(n) % 2) for n in (6, 9, 3, 12)]
for workers in (0, 2):
    result = fedacg.run(
        model=net, clients=clients, test=clients[0], loss=loss, rounds=3, participation=1.0,
        local_epochs=2, batch_size=4, workers=workers,
    )
    print(result.summary["vector_sha256"])
"""


def test_a_script_without_a_main_guard_brings_its_own_classes_to_the_workers(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(SCRIPT)
    done = subprocess.run(
        [sys.executable, "script.py"], cwd=tmp_path, capture_output=True, text=True, check=False, timeout=120
    )
    assert done.returncode == 0, done.stderr
    started, serial, processes = done.stdout.split()
    assert started == "started", "the script ran once and not in every worker"
    assert serial == processes


def test_normalisation_buffers_are_the_plain_mean_of_the_clients() -> None:
    """The first layer's statistics depend on the inputs alone, so they can be worked out without training."""
    data = clients((4, 12), torch.float64)
    net = nn.Sequential(nn.BatchNorm1d(4), linear()).double()
    rounds = 5
    result = run(
        model=net,
        clients=data,
        test=data[0],
        method="fedacg",
        options={"lam": 0.9, "beta": 0.1},
        rounds=rounds,
        participation=1.0,
        batch_size=100,
    )
    mean, variance = torch.zeros(4).double(), torch.ones(4).double()
    for _ in range(rounds):
        means = [0.9 * mean + 0.1 * x.mean(0) for x, _ in data]
        variances = [0.9 * variance + 0.1 * x.var(0) for x, _ in data]
        mean = 0.25 * means[0] + 0.75 * means[1]
        variance = 0.25 * variances[0] + 0.75 * variances[1]
    found = dict(result.model.named_buffers())
    assert torch.allclose(found["0.running_mean"], mean, rtol=0, atol=1e-14)
    assert torch.allclose(found["0.running_var"], variance, rtol=0, atol=1e-14)
    assert found["0.num_batches_tracked"].dtype == torch.int64
    assert found["0.num_batches_tracked"] == rounds


def test_a_count_of_batches_stays_whole_when_clients_differ() -> None:
    data = clients((4, 12))  # one step and three steps, weights ¼ and ¾
    net = nn.Sequential(nn.BatchNorm1d(4), linear())
    result = run(model=net, clients=data, test=data[0], method="fedacg", rounds=1, participation=1.0)
    count = dict(result.model.named_buffers())["0.num_batches_tracked"]
    assert count.dtype == torch.int64
    assert count == round(0.25 * 1 + 0.75 * 3)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"rounds": 0}, r"^rounds = 0: must be greater than or equal to 1"),
        ({"rounds": "ten", "cohorts": [[0]]}, r"^rounds = 'ten': must be a valid integer"),
        ({"participation": 0}, r"^participation = 0: must be greater than 0"),
        ({"participation": 2}, r"^participation = 2: must be less than or equal to 1"),
        ({"cohort_size": 5}, r"^cohort_size = 5: there are only 4 clients"),
        ({"weights": "equal"}, r"^weights = 'equal': must be 'examples' or 'uniform'"),
        ({"lr": -1}, r"^lr = -1: must be greater than 0"),
        ({"lr": float("nan")}, r"^lr = nan: must be a finite number"),
        ({"lr_decay": 0}, r"^lr_decay = 0: must be greater than 0"),
        ({"weight_decay": -1}, r"^weight_decay = -1: must be"),
        ({"momentum": 1}, r"^momentum = 1: must be less than 1"),
        ({"clip": -1}, r"^clip = -1: must be"),
        ({"local_epochs": 0}, r"^local_epochs = 0: must be"),
        ({"local_steps": -1}, r"^local_steps = -1: must be"),
        ({"batch_size": 0}, r"^batch_size = 0: must be"),
        ({"evaluate_every": 0}, r"^evaluate_every = 0: must be"),
        ({"targets": [90]}, r"^targets.0 = 90: must be less than or equal to 1"),
        ({"seed": -1}, r"^seed = -1: must be"),
        ({"workers": -1}, r"^workers = -1: must be greater than or equal to 0"),
        ({"method": "fedsgd"}, r"^unknown method 'fedsgd': .*choose from fedacg"),
        ({"method": "fedavgm+acg"}, r"has a server rule already"),
        ({"options": {"lambda": 1}}, r"^unknown option of method fedacg 'lambda': did you mean 'lam'\?"),
        ({"options": {"lam": 1}}, r"^method.lam = 1: must lie in \[0, 1\)"),
        ({"options": {"name": "fedavg"}}, r"^options = \{'name': 'fedavg'\}: name is not an option"),
        ({"resume": True}, r"^resume = True: needs out="),
        ({"model": nn.ReLU()}, r"^model: has no trainable parameters"),
        ({"model": linear().requires_grad_(False)}, r"^model: has no trainable parameters"),
        ({"model": nn.Sequential(linear(), nn.Linear(2, 2).double())}, r"^model: .* differ in type or device"),
        ({"clients": []}, r"^clients: must have at least one client"),
        ({"clients": [(torch.ones(3, 4), torch.ones(2))]}, r"^clients\[0\]: x has 3 examples and y has 2"),
        ({"clients": [(torch.ones(0, 4), torch.ones(0))]}, r"^clients\[0\]: must have at least one example"),
        ({"test": 5}, r"^test: must be a pair \(x, y\), a data set of pairs, or have __len__ and fetch, not int"),
    ],
)
def test_what_does_not_fit_is_refused_by_the_name_it_was_given_under(
    options: dict[str, Any], message: str
) -> None:
    with pytest.raises(InputError, match=message):
        run(**options)


def test_nothing_is_written_for_a_run_that_cannot_be(tmp_path: Path) -> None:
    with pytest.raises(InputError):
        run(model=nn.ReLU(), out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_an_experiment_of_the_catalogue_runs_as_the_program_runs_it(tmp_path: Path) -> None:
    experiment = fedacg.recipe("quickstart", rounds=2, engine="serial")
    result = fedacg.run(experiment, out=tmp_path / "run")
    assert result.history.rounds == 2
    assert torch.equal(result.vector, play(experiment, prepare(experiment)).vector)
    assert Experiment.parse(read_toml(tmp_path / "run" / "experiment.toml")) == experiment


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"rounds": 3}, r"^rounds: an experiment is given; set it there"),
        ({"model": nn.Linear(2, 2)}, r"^model: an experiment is given"),
    ],
)
def test_with_an_experiment_come_no_settings_beside_it(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        fedacg.run(fedacg.recipe("quickstart"), **settings)


def test_without_an_experiment_a_model_and_data_are_needed() -> None:
    with pytest.raises(InputError, match=r"^clients: is missing; give an experiment, or model= and clients="):
        fedacg.run(model=nn.Linear(2, 2))


def test_tables_and_short_names_are_the_same() -> None:
    short = run(lr=0.05, local_epochs=2, cohort_size=2)
    given = {"participation": None, "local_epochs": None, "lr": None}  # in place of those of every run here
    tables = run(**given, local={"lr": 0.05, "epochs": 2}, cohort={"fraction": 0.5, "size": 2})
    assert torch.equal(short.vector, tables.vector)


def test_the_layout_is_part_of_the_description(tmp_path: Path) -> None:
    run(out=tmp_path / "run", channels_last=True)
    assert read_toml(tmp_path / "run" / "experiment.toml")["model"]["layout"] == "channels-last"
    with pytest.raises(InputError, match=r'model.layout is "channels-last" there and "auto" here'):
        run(out=tmp_path / "run", resume=True)
    with pytest.raises(InputError, match=r"^channels_last: is also given as layout"):
        run(channels_last=True, layout="default")


def test_a_target_more_does_not_forbid_going_on(tmp_path: Path) -> None:
    first = run(out=tmp_path / "run", targets=[0.5])
    again = run(out=tmp_path / "run", targets=[0.5, 0.9], resume=True)
    assert torch.equal(first.vector, again.vector)
    assert again.summary["targets"] == [0.5, 0.9]
