"""Methods of a user's own by name: those of examples/methods, on every engine, fused or not, and resumed."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from fedacg.config.experiment import Experiment
from fedacg.config.recipe import find, override, with_method
from fedacg.core import plugins
from fedacg.engines.processes import ProcessEngine
from fedacg.engines.serial import SerialEngine
from fedacg.errors import InputError
from fedacg.runs.build import plan, prepare
from fedacg.runs.runner import Result, play
from support.command import Command, refused
from support.runs import StopAfter, digest

EXAMPLES = Path(__file__).parents[2] / "examples" / "methods"
SAME = {
    "scaffold:scaffold": "scaffold",
    "scaffold:scaffold:option=1": "scaffold:option=1",
    "scaffold:scaffold+acg": "scaffold+acg",
    "fedsam:fedsam": "fedsam",
    "fedacg+fedsam:sam": "fedacg+sam",
    "fednova:fednova": "fednova",
    "mimelite:mimelite": "mimelite",
    "fedacg+topk:topk:part=0.05": None,
    "scaffold:scaffold+topk:topk+paq": None,
}
"""Names of the examples, and the method of the catalogue that does the same."""


@pytest.fixture(autouse=True, scope="module")
def _examples_can_be_imported() -> Iterator[None]:
    sys.path.append(str(EXAMPLES))
    yield
    sys.path.remove(str(EXAMPLES))


@pytest.fixture(scope="module")
def pool(_examples_can_be_imported: None) -> Iterator[ProcessEngine]:
    engine = ProcessEngine(2)
    yield engine
    engine.close()


def described(method: str, *settings: str) -> Experiment:
    base = ["rounds=3", "local.epochs=1", "cohort.size=6", "failures.straggle=0.4", "engine.name=serial"]
    return Experiment.parse(override(with_method(find("quickstart"), method), [*base, *settings]))


def played(method: str, *settings: str, engine: SerialEngine | ProcessEngine | None = None) -> Result:
    experiment = described(method, *settings)
    return play(experiment, prepare(experiment), engine=engine or SerialEngine())


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.py")), ids=lambda path: path.name)
def test_an_example_is_short_and_has_its_equations(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert len(text.splitlines()) <= 70
    assert "client   " in text.partition('"""\n\n')[0]


@pytest.mark.parametrize("fuse", ["on", "off"])
@pytest.mark.parametrize("method", SAME)
def test_a_plugin_has_the_same_bits_with_and_without_workers(method: str, fuse: str, pool: ProcessEngine) -> None:
    setting = f"engine.fuse={fuse}"
    experiment = described(method, setting)
    assert (plan(experiment, prepare(experiment)).job.group > 1) == (fuse == "on")
    assert digest(played(method, setting)) == digest(played(method, setting, engine=pool))


@pytest.mark.parametrize("method", [name for name, same in SAME.items() if same])
def test_an_example_is_the_method_of_the_catalogue(method: str) -> None:
    theirs = SAME[method]
    assert theirs is not None
    ours, other = played(method).vector, played(theirs).vector
    assert float((ours - other).abs().max()) < 1e-5


def test_a_run_resumes_with_its_plugin(tmp_path: Path) -> None:
    experiment = described("scaffold:scaffold+topk:topk", "save.seconds=1000")
    whole = play(experiment, prepare(experiment), engine=SerialEngine())
    with pytest.raises(KeyboardInterrupt):
        play(
            experiment,
            prepare(experiment),
            engine=SerialEngine(),
            folder=tmp_path / "run",
            callbacks=[StopAfter(2)],
        )
    written = (tmp_path / "run" / "experiment.toml").read_text(encoding="utf-8")
    assert 'name = "scaffold:scaffold+topk:topk"' in written
    again = play(experiment, prepare(experiment), engine=SerialEngine(), folder=tmp_path / "run", resume=True)
    assert digest(again) == digest(whole)


def test_an_installed_package_announces_methods_and_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    names = {"methods": {"nova": "fednova:fednova"}, "parts": {"largest": "topk:topk"}}
    announced = lambda kind: names.get(kind, {})  # noqa: E731 - what packages say
    for place in ("fedacg.core.plugins", "fedacg.config.methods", "fedacg.config.fields"):
        monkeypatch.setattr(f"{place}.announced", announced)
    assert digest(played("nova")) == digest(played("fednova:fednova"))
    assert described("nova+largest").method.options["part"] == 0.1
    with pytest.raises(InputError, match="unknown method 'novva': did you mean 'nova'"):
        described("novva")


def test_nothing_is_announced_that_is_not_installed() -> None:
    assert plugins.announced("methods") == {}


@pytest.mark.parametrize(
    ("method", "words"),
    [
        ("nowhere:scaffold", "no module nowhere"),
        ("scaffold:nothing", "the module scaffold has no nothing"),
        ("scaffold:Controls", "is a ABCMeta; must be a fedacg.methods.Entry"),
        ("fedavg+scaffold:scaffold", "is a Entry; must be a fedacg.methods.Modifier"),
        ("scaffold:scaffold:option=3", "method.option = 3: must lie in {1, 2}"),
        ("scaffold:scaffold:momentum=3", "unknown option of method scaffold:scaffold 'momentum'"),
        ("fedacg:lam", "'lam' must look like lam=0.9"),
    ],
)
def test_a_plugin_that_does_not_fit_is_refused(method: str, words: str, fedacg: Command) -> None:
    refused(fedacg("run", "tiny.toml", "--method", method), words)
