"""The tables of an experiment file, one class each: keys, defaults, ranges, and numbers derived from them.

Those about participation are in participation.py. Each module gets the section it needs; experiment.py combines
them.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import ConfigDict, Field, field_validator, model_validator

from fedacg.config import methods
from fedacg.config.catalogue import CALLBACKS, DATA_SETS, GIVEN, MODELS, SPLITS
from fedacg.config.fields import Goal, Incidental, Section, named
from fedacg.core.plugins import may_import
from fedacg.errors import SettingError, unknown


class SeedSettings(Section):
    """Seeds of single streams of randomness; −1 follows `seed`."""

    split: int = Field(-1, ge=-1)
    """Who holds which examples."""
    weights: int = Field(-1, ge=-1)
    """The initial parameters."""
    cohorts: int = Field(-1, ge=-1)
    """Which clients are available, asked, and fail."""
    batches: int = Field(-1, ge=-1)
    """All randomness of a client's work: batches, augmentation, dropout, quantisation."""


class DataSettings(Section):
    """The examples, and how they are split among clients."""

    name: str = "digits"
    path: str = ""
    """Path of the data set `folder`."""
    partial: Incidental[bool] = False
    """Use a copy of a published data set even if it is incomplete or differs."""
    clients: int = Field(100, ge=0)
    """Number of clients; with the split `natural`, 0 takes all that come with the data, else a random choice."""
    split: str = "dirichlet"
    """How examples are split among clients; `natural` for data that come with clients."""
    alpha: float = Field(0.3, ge=0)
    """Concentration of the Dirichlet splits and of `quantity`; α of Synthetic(α, β)."""
    shards: int = Field(2, ge=1)
    """Classes per client in the split `shards`."""
    beta: float = Field(1.0, ge=0)
    """β of Synthetic(α, β)."""
    split_file: str = ""
    """A saved split to use instead of drawing one."""
    augment: bool = False
    """Rotate, crop and flip training images."""
    validation: float = Field(0.0, ge=0, lt=1)
    """Fraction held out as validation data, evaluated with the test set; 0 holds out nothing."""
    validation_from: Literal["examples", "clients", "test"] = "examples"
    """Where it is held out: from every client's examples, from the clients, or from the test set."""

    @field_validator("name")
    @classmethod
    def _known(cls, name: str) -> str:
        return name if name == GIVEN else named("data set", "data", name, DATA_SETS)

    @field_validator("split")
    @classmethod
    def _known_split(cls, split: str) -> str:
        if split not in SPLITS:
            raise unknown("split", split, SPLITS)
        return split

    @field_validator("split_file", "path")
    @classmethod
    def _absolute(cls, path: str) -> str:
        """A description must mean the same wherever it is read."""
        return str(Path(path).resolve()) if path else ""

    @model_validator(mode="after")
    def _something_is_held_out(self) -> Self:
        if self.validation_from != "examples" and not self.validation:
            why = "has no effect, as data.validation is 0"
            raise SettingError("data.validation_from", repr(self.validation_from), why)
        return self


class ModelSettings(Section):
    """The network, with its options such as `hidden`."""

    model_config = ConfigDict(extra="allow")

    name: str = "mlp"
    layout: Literal["auto", "default", "channels-last"] = "auto"
    """Memory layout of convolution weights in the vector; `auto` takes the one measured to be fastest."""
    factorise: float = Field(0, ge=0)
    """FedPara: the rank of the factors that weights are made of, or a fraction of the way from the least rank with
    which a weight can be any matrix to the greatest that saves anything; 0 leaves weights as they are."""

    @field_validator("name")
    @classmethod
    def _known(cls, name: str) -> str:
        return name if name == GIVEN else named("model", "models", name, MODELS)

    @property
    def options(self) -> dict[str, Any]:
        return dict(self.model_extra or {})


class MethodSettings(Section):
    """Which method, with its options; those not given are filled in.

    Names, options and their ranges are checked here. Whether parts can be combined is checked when the method is
    built.
    """

    model_config = ConfigDict(extra="allow")

    name: str = "fedacg"

    @model_validator(mode="before")
    @classmethod
    def _complete(cls, tree: Any) -> Any:
        if not isinstance(tree, Mapping):
            return tree
        options = {key: value for key, value in tree.items() if key != "name"}
        name = str(tree.get("name", "fedacg"))
        if methods.names_code(name) and not may_import():
            return tree  # read from a run folder, where it was completed when it was written
        return {"name": methods.parse(name).name, **methods.complete(name, options)}

    @property
    def options(self) -> dict[str, float]:
        return dict(self.model_extra or {})


class LocalSettings(Section):
    """How a client trains: plain SGD by default."""

    epochs: int = Field(5, ge=1)
    """Passes over the client's examples, unless `steps` is set."""
    steps: int = Field(0, ge=0)
    """A fixed number of steps instead of epochs; 0 uses epochs."""
    batch: int = Field(50, ge=1)
    """Examples per step; the last, smaller batch of an epoch is kept."""
    lr: float = Field(0.1, gt=0)
    schedule: str = "exponential"
    """The rate over rounds: `exponential`, `constant`, `cosine`, `step`, or module:function."""
    lr_decay: float = Field(1.0, gt=0, le=1)
    """Factor d of the schedules `exponential`, η_t = η₀·d^(t−1) in round t = 1, 2, …, and `step`."""
    milestones: tuple[Annotated[int, Field(ge=1)], ...] = Field((), strict=False)
    """Rounds after which the schedule `step` applies its factor."""
    warmup: int = Field(0, ge=0)
    """Rounds of linear warm-up."""
    within: str = "constant"
    """The rate within a round: `constant`, `linear` or `cosine` down to zero, or module:function."""
    epoch_decay: bool = False
    """Decay once more in every local epoch, as the FedACG authors' code does."""
    optimiser: Literal["sgd", "adam", "adamw"] = "sgd"
    """The local optimiser; its state starts at zero in every round."""
    weight_decay: float = Field(0.0, ge=0)
    momentum: float = Field(0.0, ge=0, lt=1)
    """Momentum of the local SGD; its buffer starts at zero in every round."""
    nesterov: bool = False
    """Nesterov's form of that momentum."""
    beta1: float = Field(0.9, ge=0, lt=1)
    """Adam's decay of the first moment."""
    beta2: float = Field(0.999, ge=0, lt=1)
    """Adam's decay of the second moment."""
    epsilon: float = Field(1e-8, gt=0)
    """What Adam adds to the root of the second moment."""
    clip: float = Field(0.0, ge=0)
    """Largest norm of the whole gradient, corrections included; 0 never clips."""
    precision: Literal["full", "mixed"] = "full"
    """`mixed` computes networks and losses in bfloat16 where that is safe; vectors stay as they are."""

    @field_validator("schedule")
    @classmethod
    def _known_schedule(cls, name: str) -> str:
        return named("schedule", "schedules", name, ("exponential", "constant", "cosine", "step"))

    @field_validator("within")
    @classmethod
    def _known_within(cls, name: str) -> str:
        return named("schedule within a round", "schedules", name, ("constant", "linear", "cosine"))

    @model_validator(mode="after")
    def _everything_has_an_effect(self) -> Self:
        """Refuse a setting that would have no effect."""
        idle = {
            "lr_decay": self.schedule not in ("exponential", "step") and self.lr_decay != 1,
            "milestones": self.schedule != "step" and self.milestones != (),
            "nesterov": self.nesterov and not self.momentum,
            "momentum": self.optimiser != "sgd" and self.momentum != 0,
            "epoch_decay": self.epoch_decay and self.lr_decay == 1,
        }
        why = {
            "lr_decay": f"the schedule is {self.schedule}",
            "milestones": f"the schedule is {self.schedule}, not step",
            "nesterov": "local.momentum is 0",
            "momentum": f"the optimiser is {self.optimiser}, not sgd",
            "epoch_decay": "local.lr_decay is 1",
        }
        for key, useless in idle.items():
            if useless:
                raise SettingError(f"local.{key}", repr(getattr(self, key)), f"has no effect, as {why[key]}")
        return self

    def steps_for(self, examples: int) -> int:
        """K, the number of local steps of a client with this many examples."""
        return self.steps or self.epochs * -(-examples // self.batch)


class EvaluateSettings(Section):
    """When and how the server's model is evaluated."""

    every: int = Field(1, ge=1)
    """Rounds between evaluations; the last round is always evaluated."""
    batch: int = Field(1000, ge=1)
    """Test examples per forward pass."""
    examples: int = Field(0, ge=0)
    """Evaluate on at most this many test examples, drawn once by the seed; 0 takes all."""
    targets: Incidental[tuple[Annotated[float, Field(gt=0, le=1)], ...]] = Field((), strict=False)
    """Target accuracies, as fractions; the summary reports rounds and bytes to each."""
    goals: Incidental[tuple[str, ...]] = Field((), strict=False)
    """The same for any figure, in either direction: `test/f1>=0.8`, `test_loss<=0.3`."""
    metrics: Incidental[tuple[str, ...]] = Field((), strict=False)
    """Custom metrics, module:function each, of the outputs and labels of a whole set."""
    test: Literal["every", "end"] = "every"
    """Use the test set in every evaluation, or with `end` only after the last round."""
    client_losses: Incidental[bool] = False
    """Record the training loss of every client that answered, not only the mean."""
    clients: Literal["none", "train", "own", "held-out"] = "none"
    """Evaluate the model on every client: on its training examples, on its own test examples, or on a held-out
    part of its training examples."""
    client_every: int = Field(0, ge=0)
    """Rounds between evaluations on clients; the last round always has one, and with 0 only the last."""
    client_steps: int = Field(0, ge=0)
    """Evaluate again after this many steps of fine-tuning on the client's training examples; 0 does not."""
    held_out: float = Field(0.1, gt=0, lt=1)
    """Fraction of a client's examples that is held out."""

    @model_validator(mode="after")
    def _everything_has_an_effect(self) -> Self:
        """Refuse a setting that would have no effect."""
        for key, value in (("client_every", self.client_every), ("client_steps", self.client_steps)):
            if value and self.clients == "none":
                raise SettingError(f"evaluate.{key}", repr(value), "has no effect, as evaluate.clients is none")
        if self.held_out != 0.1 and self.clients != "held-out":
            why = f"has no effect, as evaluate.clients is {self.clients}, not held-out"
            raise SettingError("evaluate.held_out", repr(self.held_out), why)
        return self

    def measures_clients(self, round: int, last: int) -> bool:
        """Whether a round evaluates single clients."""
        due = self.client_every and round % self.client_every == 0
        return self.clients != "none" and (bool(due) or round == last)

    @field_validator("goals")
    @classmethod
    def _readable(cls, goals: tuple[str, ...]) -> tuple[str, ...]:
        for goal in goals:
            Goal.parse(goal)
        return goals

    @field_validator("metrics")
    @classmethod
    def _known_metrics(cls, names: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(named("metric", "metrics", name, ()) for name in names)

    @property
    def all_goals(self) -> list[Goal]:
        """The targets, then the goals."""
        return [*map(Goal.accuracy, self.targets), *map(Goal.parse, self.goals)]


class CallbackSettings(Section):
    """A callback by name, with options of its own."""

    model_config = ConfigDict(extra="allow")

    name: str

    @field_validator("name")
    @classmethod
    def _known(cls, name: str) -> str:
        return named("callback", "callbacks", name, CALLBACKS)

    @property
    def options(self) -> dict[str, Any]:
        return dict(self.model_extra or {})


class EngineSettings(Section):
    """Where and how the local work is done; it affects the result by rounding at most."""

    name: Incidental[Literal["auto", "serial", "processes", "ray"]] = "auto"
    """`auto` is `serial` for too little work to start workers, else `processes` (runs/choices.py)."""
    workers: Incidental[int] = Field(0, ge=0)
    """Number of workers, one thread each; 0 starts one per core, or per CPU of a Ray cluster."""
    fuse: Literal["auto", "on", "off"] = "auto"
    """Whether many clients are trained in one computation; `auto` does so where that was measured to be faster."""
    device: Literal["cpu", "cuda", "mps"] = "cpu"
    """The device of the workers; several devices of a machine are used in turn."""
    address: Incidental[str] = ""
    """Address of a Ray cluster: host:port, `auto`, or `local` to start one; by default RAY_ADDRESS, else local."""


class SaveSettings(Section):
    """How much work a crash may cost."""

    seconds: float = Field(10.0, ge=0)
    """Seconds between checkpoints, which are written after a round; 0 writes one every round."""


class AnalysisSettings(Section):
    """Which rounds are recorded."""

    rounds: tuple[Annotated[int, Field(ge=1)], ...] = Field((), strict=False)
    """Rounds whose broadcast and local models are kept on disk."""
    every: int = Field(0, ge=0)
    """Record every n-th round as well; 0 records no others."""

    def wants(self, round: int) -> bool:
        """Whether a round is recorded."""
        return round in self.rounds or (self.every > 0 and round % self.every == 0)
