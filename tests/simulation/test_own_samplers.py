"""Samplers of one's own that look at the history: by name, from Python, with workers and after a resume."""

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import fedacg
from fedacg import InputError
from fedacg.simulation.metrics import RoundMetrics
from fedacg.simulation.sampling import Draw


def problem(**settings: Any) -> dict[str, Any]:
    source = torch.Generator().manual_seed(5)
    inputs = [torch.randn(n, 4, generator=source) for n in (8, 9, 10, 11, 12, 53)]
    pairs = [(x, x[:, :3].argmax(dim=1)) for x in inputs]
    with torch.random.fork_rng():
        torch.manual_seed(0)
        net = nn.Linear(4, 3)
    own = {"model": net, "clients": pairs[:-1], "test": pairs[-1]}
    return {
        **own,
        "rounds": 6,
        "cohort_size": 2,
        "local_steps": 2,
        "evaluate": {"client_losses": True},
        **settings,
    }


def worst(draw: Draw) -> list[int]:
    """One of those with the largest loss when last seen, whom nobody has seen first; and one at random."""
    losses = np.full(draw.clients, np.inf)
    for metrics in draw.history:
        losses[list(metrics.arrived)] = metrics.client_losses
    first = int(np.argmax(losses + 1e-6 * draw.random.random(draw.clients)))
    rest = [client for client in range(draw.clients) if client != first]
    return [first, int(draw.random.choice(rest))][: draw.count]


def test_a_sampler_sees_the_rounds_before_its_own() -> None:
    seen: list[list[int]] = []

    def look(draw: Draw) -> list[int]:
        seen.append([metrics.round for metrics in draw.history])
        return worst(draw)

    result = fedacg.run(**problem(), sampler=look)
    assert seen == [list(range(1, number)) for number in range(1, 7)]
    lost = np.full(5, np.inf)
    for metrics in result.history:
        assert lost[list(metrics.cohort)].max() == lost.max(), "one of the worst takes part"
        lost[list(metrics.arrived)] = metrics.client_losses


def test_it_has_the_same_bits_with_workers_and_after_a_resume(tmp_path: Path) -> None:
    whole = fedacg.run(**problem(), sampler=worst)
    assert torch.equal(fedacg.run(**problem(), sampler=worst, workers=2).vector, whole.vector)

    def stop(metrics: RoundMetrics) -> None:
        if metrics.round == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fedacg.run(**problem(), sampler=worst, out=tmp_path / "run", on_round=stop)
    resumed = fedacg.run(**problem(), sampler=worst, out=tmp_path / "run", resume=True)
    assert torch.equal(resumed.vector, whole.vector)
    assert [m.cohort for m in resumed.history] == [m.cohort for m in whole.history]
    longer = fedacg.run(**problem(rounds=8), sampler=worst, out=tmp_path / "run", resume=True)
    assert torch.equal(longer.vector, fedacg.run(**problem(rounds=8), sampler=worst).vector)


def test_another_sampler_cannot_go_on_with_a_run(tmp_path: Path) -> None:
    fedacg.run(**problem(), sampler=worst, out=tmp_path / "run")
    with pytest.raises(InputError, match="cohorts: round 1 asked clients"):
        fedacg.run(**problem(rounds=7), sampler=lambda draw: [3, 4], out=tmp_path / "run", resume=True)
    with pytest.raises(InputError, match=r'cohort\.draw is "python" there and "exact" here'):
        fedacg.run(**problem(), out=tmp_path / "run", resume=True)


def test_it_has_a_name_in_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = Path(__file__).read_text()
    body = source[source.index("def worst") : source.index("def test_a_sampler_sees")]
    (tmp_path / "my_draw.py").write_text(f"import numpy as np\n\n\n{body.replace('draw: Draw', 'draw')}")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "my_draw", raising=False)
    named = fedacg.run(**problem(draw="my_draw:worst"))
    assert torch.equal(named.vector, fedacg.run(**problem(), sampler=worst).vector)


@pytest.mark.parametrize(
    ("settings", "error"),
    [
        ({"sampler": 3}, "sampler = 3: must be a function"),
        ({"sampler": worst, "cohorts": [[0]] * 6}, "sampler: cohorts are also given"),
        ({"draw": "python"}, "draw = 'python': the sampler was given from Python"),
        ({"sampler": lambda draw: [9]}, "chose client 9, which is not available"),
        ({"sampler": lambda draw: "ab"}, "must be the numbers of clients"),
    ],
)
def test_what_is_no_sampler_is_refused(settings: dict[str, Any], error: str) -> None:
    with pytest.raises(InputError, match=error):
        fedacg.run(**problem(**settings))
