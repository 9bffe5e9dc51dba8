"""Seeds stream by stream: each changes its own part of a run and nothing else; comparisons are paired."""

from pathlib import Path

import pytest
import torch

from fedacg.config.experiment import Experiment
from fedacg.config.fields import STREAMS
from fedacg.config.recipe import read_toml
from fedacg.core.vector import FlatModel, clone
from fedacg.data.examples import labels
from fedacg.runs.build import prepare, sampling
from fedacg.runs.runner import Result, play
from support.command import Command, refused
from support.runs import digest, tiny


def traits(experiment: Experiment) -> dict[str, object]:
    """What each stream decides of a run, as something to compare; of batches, the client's order of examples."""
    ingredients = prepare(experiment)
    clients = ingredients.data.clients
    draws = sampling(experiment, len(clients))
    return {
        "split": [labels(clients[client]).tolist() for client in range(len(clients))],
        "weights": FlatModel(clone(ingredients.module)).w.tolist(),
        "cohorts": [draws.attendance(round).asked for round in range(1, 6)],
        "batches": experiment.seed_of("batches"),
    }


@pytest.mark.parametrize("stream", STREAMS)
def test_a_stream_changes_its_own_part_alone(stream: str, tmp_path: Path) -> None:
    before, after = (traits(tiny(tmp_path, *settings)) for settings in ([], [f"seeds.{stream}=9"]))
    assert [name for name in STREAMS if before[name] != after[name]] == [stream]


def played(experiment: Experiment) -> Result:
    return play(experiment, prepare(experiment))


def test_streams_that_follow_the_seed_keep_the_bits(tmp_path: Path) -> None:
    plain = tiny(tmp_path, "rounds=2")
    spelled = tiny(tmp_path, "rounds=2", "seed=77", *(f"seeds.{stream}=4" for stream in STREAMS))
    assert digest(played(plain)) == digest(played(spelled))


def test_another_seed_for_batches_gives_another_result_from_the_same_start(tmp_path: Path) -> None:
    one, other = played(tiny(tmp_path, "rounds=1")), played(tiny(tmp_path, "rounds=1", "seeds.batches=5"))
    assert one.history[0].cohort == other.history[0].cohort
    assert digest(one) != digest(other)


def test_methods_with_the_same_seed_are_a_pair(tmp_path: Path) -> None:
    """FedACG's first round without its penalty is FedAvg's, to the bit: so split, weights and batches are, too."""
    average = played(tiny(tmp_path, "rounds=1", "method.name=fedavg"))
    lookahead = played(tiny(tmp_path, "rounds=1", "method.name=fedacg", "method.beta=0"))
    assert torch.equal(average.vector, lookahead.vector)
    later = [played(tiny(tmp_path, "rounds=4", f"method.name={name}")) for name in ("fedavg", "fedacg")]
    assert [m.cohort for m in later[0].history] == [m.cohort for m in later[1].history]
    assert digest(later[0]) != digest(later[1])


def test_compare_varies_what_it_is_told(fedacg: Command) -> None:
    arguments = ("compare", "tiny.toml", "-m", "fedavg", "--seeds", "1,2", "-s", "rounds=1", "--out", "out", "-q")
    assert fedacg(*arguments, "--vary", "cohorts,batches").code == 0
    folders = [fedacg.folder / "out" / f"fedavg-s{seed}" for seed in (1, 2)]
    found = [Experiment.parse(read_toml(folder / "experiment.toml")) for folder in folders]
    assert [(e.seed_of("split"), e.seed_of("weights")) for e in found] == [(4, 4), (4, 4)]
    assert [(e.seed_of("cohorts"), e.seed_of("batches")) for e in found] == [(1, 1), (2, 2)]


def test_vary_refuses_what_no_seed_changes(fedacg: Command) -> None:
    refused(fedacg("compare", "tiny.toml", "-m", "fedavg", "--vary", "cohort"), "--vary", "cohort", "cohorts")


@pytest.mark.parametrize("value", ["-2", "0.5", str(2**63)])
def test_a_seed_out_of_range_is_refused(fedacg: Command, value: str) -> None:
    refused(fedacg("run", "tiny.toml", "-s", f"seeds.split={value}"), "seeds.split")
