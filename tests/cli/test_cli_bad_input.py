"""Bad input at the command line: one message with the field, the value and what is allowed; exit code 2."""

from dataclasses import replace
from pathlib import Path

import pytest

from fedacg.data import catalogue
from fedacg.data.origins import Published
from fedacg.data.sources import cifar
from fedacg.data.sources.cifar import CifarSource
from fedacg.runs.folder import RunFolder
from support.checksums import md5
from support.cifar_files import small, write
from support.command import Command, refused


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        ("cohort.fraction=0", ["cohort.fraction = 0:", "greater than 0"]),
        ("cohort.fraction=1.5", ["cohort.fraction = 1.5:", "less than or equal to 1"]),
        ("cohort.size=21", ["cohort.size = 21:", "only 20 clients"]),
        ("cohort.size=-1", ["cohort.size = -1:", "greater than or equal to 0"]),
        ("cohort.weights=equal", ["cohort.weights = 'equal':", "'examples' or 'uniform'"]),
        ("local.lr=-0.1", ["local.lr = -0.1:", "greater than 0"]),
        ("local.lr=0", ["local.lr = 0:", "greater than 0"]),
        ("local.lr=nan", ["local.lr = nan:", "finite"]),
        ("local.lr=inf", ["local.lr = inf:", "finite"]),
        ("local.lr_decay=1.01", ["local.lr_decay = 1.01:", "less than or equal to 1"]),
        ("local.weight_decay=-0.001", ["local.weight_decay = -0.001:", "greater than or equal to 0"]),
        ("local.weight_decay=-inf", ["local.weight_decay = -inf:", "finite"]),
        ("local.momentum=-0.9", ["local.momentum = -0.9:", "greater than or equal to 0"]),
        ("local.momentum=1", ["local.momentum = 1:", "less than 1"]),
        ("local.clip=-1", ["local.clip = -1:", "greater than or equal to 0"]),
        ("local.batch=0", ["local.batch = 0:", "greater than or equal to 1"]),
        ("data.alpha=0", ["data.alpha = 0:", "greater than 0"]),
        ("data.alpha=-1", ["data.alpha = -1:", "greater than or equal to 0"]),
        ("data.alpha=nan", ["data.alpha = nan:", "finite"]),
        ("data.clients=1439", ["data.clients = 1439:", "more clients than examples (1438)"]),
        ("data.clients=0", ["data.clients = 0:", "must be at least 1"]),
        ("data.split_file=/nowhere.npz", ["data.split_file = /nowhere.npz:", "no such file"]),
        ("method.lam=1", ["method.lam = 1:", "[0, 1)"]),
        ("method.lam=-0.1", ["method.lam = -0.1:", "[0, 1)"]),
        ("method.lam=nan", ["method.lam = nan:", "[0, 1)"]),
        ("method.beta=inf", ["method.beta = inf:", "[0, ∞)"]),
        (f"method.beta=-{10**400}", ["method.beta = -1000", "[0, ∞)"]),
        ("method.server_lr=0", ["method.server_lr = 0:", "(0, ∞)"]),
        ("evaluate.targets=[81]", ["evaluate.targets.0 = 81:", "less than or equal to 1"]),
        ("engine.name=gpu", ["engine.name = 'gpu':", "'serial', 'processes' or 'ray'"]),
        ("engine.workers=-1", ["engine.workers = -1:", "greater than or equal to 0"]),
        ("seed=-1", ["seed = -1:", "greater than or equal to 0"]),
        ("rounds=0", ["rounds = 0:", "greater than or equal to 1"]),
    ],
)
def test_a_value_out_of_range_is_refused(fedacg: Command, setting: str, words: list[str]) -> None:
    refused(fedacg("run", "tiny.toml", "--set", setting), *words)
    assert not (fedacg.folder / "runs").exists(), "nothing is written for an experiment that cannot be"


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        ("rounds=ten", ["rounds = 'ten':", "integer"]),
        ('rounds="10"', ["rounds = '10':", "integer"]),
        ("rounds=1.5", ["rounds = 1.5:", "integer"]),
        ("rounds=true", ["rounds = True:", "integer"]),
        ("rounds=", ["rounds = '':", "integer"]),
        ("local.lr=true", ["local.lr = True:", "number"]),
        ("local.lr=[0.1]", ["local.lr = [0.1]:", "number"]),
        ("method.lam=true", ["method.lam = True:", "number in [0, 1)"]),
        ("method.lam=much", ["method.lam = 'much':", "number in [0, 1)"]),
        ("data.augment=1", ["data.augment = 1:", "boolean"]),
        ("evaluate.targets=0.5", ["evaluate.targets = 0.5:", "must be a list"]),
        ("evaluate.targets=[true]", ["evaluate.targets.0 = True:", "number"]),
        ("model.hidden=16", ["model.hidden = 16:", "positive whole numbers"]),
        ("name=5", ["name = 5:", "string"]),
        ("local=5", ["local = 5:", "must be a table"]),
        ("method=fedavg", ["method = 'fedavg':", "must be a table"]),
    ],
)
def test_a_value_of_the_wrong_type_is_refused(fedacg: Command, setting: str, words: list[str]) -> None:
    refused(fedacg("run", "tiny.toml", "--set", setting), *words)


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        ("method.name=fedacgg", ["unknown method 'fedacgg'", "did you mean 'fedacg'?", "fedadc"]),
        ("method.name=fedavg+acc", ["unknown part '+acc'", "did you mean '+acg'?", "choose from +acg"]),
        ("method.lamb=0.9", ["unknown option of method fedacg 'lamb'", "did you mean 'lam'?", "server_lr"]),
        ("data.name=digit", ["unknown data set 'digit'", "did you mean 'digits'?", "cifar10"]),
        ("data.split=dirichle", ["unknown split 'dirichle'", "did you mean 'dirichlet'?", "iid"]),
        ("model.name=resnet", ["unknown model 'resnet'", "did you mean 'resnet18'?", "mlp"]),
        ("model.hiden=[8]", ["model.hiden = [8]:", "mlp takes only hidden"]),
        ("model.classes=10", ["model.classes = 10:", "follows from the data"]),
        ("model.shape=[64]", ["model.shape = [64]:", "follows from the data"]),
        ("rouns=5", ["unknown key 'rouns'", "did you mean 'rounds'?", "seed"]),
        ("locl.lr=5", ["unknown key 'locl'", "did you mean 'local'?", "cohort"]),
        ("local.weight-decay=5", ["unknown key 'local.weight-decay'", "did you mean 'local.weight_decay'?"]),
        ("cohort.sizes=5", ["unknown key 'cohort.sizes'", "did you mean 'cohort.size'?", "cohort.fraction"]),
    ],
)
def test_an_unknown_name_is_refused_with_the_nearest_and_all_others(
    fedacg: Command, setting: str, words: list[str]
) -> None:
    refused(fedacg("run", "tiny.toml", "--set", setting), *words)


@pytest.mark.parametrize(
    ("method", "words"),
    [
        ("fedavgm+acg", ["'fedavgm+acg'", "a server rule already, and a method has only one"]),
        ("fedadam+acg", ["'fedadam+acg'", "a server rule already"]),
        ("fedacg+acg", ["'fedacg+acg'", "a server rule already"]),
        ("fedprox+prox", ["'fedprox+prox'", "pulls towards φ already"]),
        ("fedacg+prox", ["'fedacg+prox'", "pulls towards φ already"]),
        ("fedavg+acg+acg", ["'fedavg+acg+acg'", "+acg is given more than once"]),
        ("fedavg+", ["unknown part '+'", "+acg", "+prox"]),
        ("fedacg:lam", ["'fedacg:lam'", "must look like lam=0.9"]),
        ("fedavg:lam=0.9", ["unknown option of method fedavg 'lam'", "server_lr"]),
    ],
)
def test_a_method_that_makes_no_sense_is_refused_with_the_reason(
    fedacg: Command, method: str, words: list[str]
) -> None:
    refused(fedacg("run", "tiny.toml", "--method", method), *words)
    refused(fedacg("compare", "tiny.toml", "--methods", f"fedavg,{method}"), *words)
    assert not (fedacg.folder / "runs").exists(), "the sound method was not run before the other was looked at"


@pytest.mark.parametrize(
    ("assignment", "words"),
    [
        ("rounds", ["--set 'rounds'", "must look like rounds=10"]),
        ("=10", ["--set '=10'", "must look like rounds=10"]),
        ("local.=10", ["--set 'local.=10'", "must look like rounds=10"]),
        ("local.lr.first=1", ["--set 'local.lr.first=1'", "local.lr=0.05"]),
        ("rounds.first=1", ["--set 'rounds.first=1'", "rounds is a single value, not a table"]),
    ],
)
def test_an_assignment_that_is_none_is_refused(fedacg: Command, assignment: str, words: list[str]) -> None:
    refused(fedacg("run", "tiny.toml", "--set", assignment), *words)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--methods", ""], ["--methods", "at least one name"]),
        (["--methods", " , "], ["--methods", "at least one name"]),
        (["--methods", "fedavg,fedavg"], ["--methods 'fedavg,fedavg'", "fedavg with seed 4 is given twice"]),
        (["--methods", "fedavg,FedAvg"], ["--methods 'fedavg,FedAvg'", "is given twice"]),
        (["--methods", "fedavg", "--seeds", "one"], ["--seeds 'one'", "comma-separated whole numbers"]),
        (["--methods", "fedavg", "--seeds", "1,,2"], ["--seeds '1,,2'", "comma-separated whole numbers"]),
        (["--methods", "fedavg", "--seeds", "-1"], ["seed = -1:", "greater than or equal to 0"]),
        (["--methods", "fedavg", "--seeds", "1,1"], ["seed 1", "twice"]),
        (["--methods", "fedacg", "--set", "method.lam=0.9"], ["'method.lam=0.9'", "--methods fedacg:lam=0.9"]),
    ],
)
def test_a_comparison_that_cannot_be_is_refused(fedacg: Command, arguments: list[str], words: list[str]) -> None:
    refused(fedacg("compare", "tiny.toml", *arguments), *words)


def test_an_unknown_recipe_is_refused_with_the_nearest(fedacg: Command) -> None:
    refused(
        fedacg("run", "quickstar"), "unknown recipe 'quickstar'", "did you mean 'quickstart'?", "cifar10-large"
    )


def test_a_file_that_does_not_exist_is_named(fedacg: Command) -> None:
    refused(fedacg("run", "tiney.toml"), "tiney.toml: cannot be read: No such file")


def test_a_mistake_in_a_file_is_told_with_its_line(fedacg: Command) -> None:
    (fedacg.folder / "bad.toml").write_text('name = "bad"\nrounds = = 3\n')
    refused(fedacg("run", "bad.toml"), "bad.toml: not a TOML file", "line 2")


def test_an_unknown_key_in_a_file_is_refused(fedacg: Command) -> None:
    (fedacg.folder / "bad.toml").write_text("[local]\nlearning_rate = 0.1\n")
    refused(fedacg("run", "bad.toml"), "unknown key 'local.learning_rate'", "local.lr")


def test_an_unknown_logger_is_refused(fedacg: Command) -> None:
    refused(fedacg("run", "tiny.toml", "--log", "tensorbord"), "unknown logger 'tensorbord'", "'tensorboard'")


def test_a_report_on_no_runs_is_refused(fedacg: Command) -> None:
    (fedacg.folder / "empty").mkdir()
    refused(fedacg("report", "empty"), "empty: no run in or below it", "experiment.toml")
    refused(fedacg("report", "nowhere"), "nowhere: no such folder")


def test_an_existing_run_is_refused_without_a_word_on_what_to_do_with_it(fedacg: Command) -> None:
    run = ["run", "tiny.toml", "--out", "run", "--quiet", "--set", "rounds=1"]
    assert fedacg(*run).code == 0
    refused(fedacg(*run), "run: holds a run", "--resume", "--overwrite")
    assert fedacg(*run, "--overwrite").code == 0
    assert fedacg(*run, "--resume").code == 0


def test_a_resume_that_does_not_fit_names_the_difference(fedacg: Command) -> None:
    run = ["run", "tiny.toml", "--out", "run", "--quiet", "--set", "rounds=1"]
    assert fedacg(*run).code == 0
    other = fedacg(*run, "--resume", "--set", "local.lr=0.2", "--set", "seed=5")
    refused(other, "run: holds a different experiment", "local.lr is 0.1 there and 0.2 here", "seed is 4")
    assert "method" not in other.err


def test_a_folder_in_use_is_refused(fedacg: Command) -> None:
    holder = RunFolder(fedacg.folder / "run")
    try:
        refused(fedacg("run", "tiny.toml", "--out", "run"), "run: in use by another run (process ")
    finally:
        holder.close()


def test_a_folder_that_cannot_be_written_is_named(fedacg: Command) -> None:
    (fedacg.folder / "file").touch()
    (fedacg.folder / "run" / ".lock").mkdir(parents=True)
    refused(fedacg("run", "tiny.toml", "--out", "file"), "file: is a file; a run is kept in a folder")
    outcome = fedacg("run", "tiny.toml", "--out", "run")
    assert outcome.code == 1
    assert outcome.err.startswith("error: ")
    assert "run/.lock: cannot be written" in outcome.err


def test_data_that_are_missing_are_told_where_they_were_looked_for(
    fedacg: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FEDACG_DATA", str(fedacg.folder / "data"))
    refused(
        fedacg("run", "tiny.toml", "--set", "data.name=cifar10"),
        "data set 'cifar10' was not found",
        f"{fedacg.folder}/data/cifar-10-binary.tar.gz",
        "fedacg data get cifar10",
    )


@pytest.fixture
def batch(fedacg: Command, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file of a small CIFAR-10 that is whole, with the checksums of its files published."""
    root = fedacg.folder / "data"
    layout = small(cifar.CIFAR10).layouts[0]
    write(root, layout, 10)
    folder = root / layout.folder
    train, test = (
        tuple(replace(each, checksum=md5((folder / each.file).read_bytes())) for each in part)
        for part in (layout.train, layout.test)
    )
    source = CifarSource("cifar10", 10, Published(), (replace(layout, train=train, test=test),))
    monkeypatch.setenv("FEDACG_DATA", str(root))
    monkeypatch.setitem(catalogue.FACTS, "cifar10", replace(catalogue.FACTS["cifar10"], source=source))
    return folder / train[2].file


SMALL_CIFAR = ["run", "tiny.toml", "--quiet", "--set", "data.name=cifar10", "--set", "rounds=1"]


def test_data_that_are_whole_are_run(fedacg: Command, batch: Path) -> None:
    assert fedacg(*SMALL_CIFAR).code == 0


def test_data_that_are_cut_short_are_named_with_their_size(fedacg: Command, batch: Path) -> None:
    whole = batch.read_bytes()
    batch.write_bytes(whole[:-7])
    refused(
        fedacg(*SMALL_CIFAR),
        "data set 'cifar10'",
        f"{batch} is cut short: {len(whole) - 7} bytes where there should be {len(whole)}",
        "fedacg data get cifar10",
    )


def test_data_that_were_altered_are_named_with_their_checksum(fedacg: Command, batch: Path) -> None:
    whole = batch.read_bytes()
    batch.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    refused(
        fedacg(*SMALL_CIFAR),
        "data set 'cifar10'",
        f"{batch.parent} has {batch.name}, which was altered",
        md5(whole),
    )
