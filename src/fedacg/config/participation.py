"""The tables of an experiment file that say who takes part: cohorts, populations, failures, the clock."""

import hashlib
from pathlib import Path
from typing import Literal, Self

from pydantic import Field, field_validator, model_validator

from fedacg.config.catalogue import GIVEN, PROFILES
from fedacg.config.fields import Section, named
from fedacg.core.files import MOST_TEXT, read_whole
from fedacg.errors import InputError, SettingError, unknown


class CohortSettings(Section):
    """How many clients are asked per round, and the weights of their updates."""

    fraction: float = Field(0.1, gt=0, le=1)
    """Fraction of the clients that is asked per round, unless `size` is set."""
    size: int = Field(0, ge=0)
    """Number of clients per round; 0 uses the fraction."""
    draw: str = "exact"
    """`exact` asks that many, `coin` flips a coin per client, `spaced` asks that many of those that have rested,
    module:function is a custom sampler."""
    gap: int = Field(1, ge=1)
    """With the draw `spaced`, the least number of rounds between two visits of a client."""
    weights: Literal["examples", "uniform"] = "examples"
    """ω_i proportional to the client's number of examples, or all equal."""

    @field_validator("draw")
    @classmethod
    def _known_draw(cls, name: str) -> str:
        return name if name == GIVEN else named("draw", "samplers", name, ("exact", "coin", "spaced"))

    @model_validator(mode="after")
    def _gap_has_an_effect(self) -> Self:
        if self.gap > 1 and self.draw != "spaced":
            raise SettingError("cohort.gap", str(self.gap), f"has no effect, as cohort.draw is {self.draw}")
        return self

    def check(self, clients: int) -> None:
        """Refuse a cohort that is impossible with `clients` clients."""
        if self.size > clients:
            raise SettingError("cohort.size", str(self.size), f"there are only {clients} clients")
        if self.gap * self.count(clients) > clients:
            few = f"{self.gap} rounds ask {self.gap * self.count(clients)} clients, but there are only {clients}"
            raise SettingError("cohort.gap", str(self.gap), few)

    def count(self, clients: int) -> int:
        """M, the number of clients per round."""
        return min(self.size, clients) or max(1, round(self.fraction * clients))


class PopulationSettings(Section):
    """The available clients: all, or a set that changes from stage to stage."""

    present: int = Field(0, ge=0)
    """Number of clients available at a time; with 0, all are always available."""
    stage: int = Field(100, ge=1)
    """Rounds between changes."""
    replace: float = Field(0.5, ge=0, le=1)
    """Probability with which an available client is replaced by an absent one."""

    def check(self, clients: int) -> None:
        """Refuse a population that is impossible with `clients` clients."""
        if self.present > clients:
            raise SettingError("population.present", str(self.present), f"there are only {clients} clients")
        absent = clients - self.present
        leaving = self.replace * self.present
        if leaving > absent:
            raise SettingError(
                "population.replace",
                f"{self.replace:g}",
                f"of {self.present} present clients {leaving:g} would leave per stage, but only {absent} are "
                "absent to replace them",
            )


class FailureSettings(Section):
    """Failures of clients that are asked."""

    drop: float = Field(0.0, ge=0, le=1)
    """Probability that a client's update never arrives."""
    straggle: float = Field(0.0, ge=0, le=1)
    """Probability that a client does only part of its local steps."""
    work: float = Field(0.5, gt=0, le=1)
    """That part; at least one step is done."""
    bad: float = Field(0.0, ge=0, le=1)
    """Fraction of clients that are bad, the same ones in every round."""
    attack: Literal["sign-flip", "scale", "noise", "label-flip"] = "sign-flip"
    """What bad clients do."""
    strength: float = Field(0.0, ge=0)
    """Factor of the attack; 0 means 1 for a flipped sign and for noise, and 10 for scaling."""

    @property
    def attack_strength(self) -> float:
        return self.strength or (10.0 if self.attack == "scale" else 1.0)

    @model_validator(mode="after")
    def _attacks_have_an_effect(self) -> Self:
        if self.attack != "sign-flip" and not self.bad:
            raise SettingError("failures.attack", repr(self.attack), "has no effect, as failures.bad is 0")
        if self.strength and (not self.bad or self.attack == "label-flip"):
            why = "failures.attack is label-flip" if self.bad else "failures.bad is 0"
            raise SettingError("failures.strength", f"{self.strength:g}", f"has no effect, as {why}")
        return self


_DIGEST = "#sha256="


def split_trace(profile: str) -> tuple[str, str] | None:
    """The path of a trace and the checksum that goes with it, if there is one; None for what is no trace."""
    path, _, digest = profile.partition(_DIGEST)
    return (path, digest) if path.endswith(".csv") else None


class ClockSettings(Section):
    """How long a visit takes on real devices, and which answers the server waits for."""

    profile: str = ""
    """Devices and links of the clients: `phones`, `hospitals`, `datacentre`, or a trace, which is a file.csv. What
    is in it belongs to the experiment, so its checksum is put behind the path when a description is made."""
    deadline: float = Field(0.0, ge=0)
    """Seconds after which a round ends without late answers; 0 waits for all."""
    over_select: float = Field(1.0, ge=1)
    """Ask this many times the cohort, and take the first answers."""

    @field_validator("profile")
    @classmethod
    def _known_profile(cls, profile: str) -> str:
        if trace := split_trace(profile):
            path, digest = Path(trace[0]).resolve(), trace[1]
            try:
                digest = digest or hashlib.sha256(read_whole(path, MOST_TEXT)).hexdigest()
            except (OSError, ValueError):  # reported when devices are drawn; a report does not need them
                return str(path)
            return f"{path}{_DIGEST}{digest}"
        if profile and profile not in PROFILES:
            raise InputError(f"{unknown('clock profile', profile, PROFILES)}, or a file.csv")
        return profile

    @model_validator(mode="after")
    def _a_clock_is_there(self) -> Self:
        for key, idle in (("deadline", 0), ("over_select", 1)):
            value = getattr(self, key)
            if value != idle and not self.profile:
                raise SettingError(f"clock.{key}", f"{value:g}", "has no effect, as clock.profile is not set")
        return self

    @property
    def drops(self) -> bool:
        """Whether answers can be too late."""
        return self.deadline > 0 or self.over_select > 1


class AsynchronousSettings(Section):
    """Rounds that wait for nobody: the server moves whenever `buffer` answers have arrived."""

    buffer: int = Field(0, ge=0)
    """Number of answers per server step; 0 runs synchronous rounds."""
    staleness: float = Field(0.5, ge=0)
    """An answer to a broadcast of τ steps ago has weight (1 + τ)^−a; with 0, all weights are equal."""
    aggregate: Literal["updates", "models"] = "updates"
    """Add up what clients changed, as FedBuff does, or mix their models into the server's, as FedAsync does."""
