"""The tables of an experiment file that say who takes part: cohorts, populations, failures, the clock."""

import hashlib
from pathlib import Path
from typing import Literal, Self

from pydantic import Field, field_validator, model_validator

from fedacg.config.names import GIVEN, PROFILES
from fedacg.config.section import Section, named
from fedacg.core.files import MOST_TEXT, read_whole
from fedacg.errors import InputError, SettingError, unknown


class CohortSettings(Section):
    """How many clients are asked in a round, and what their updates weigh."""

    fraction: float = Field(0.1, gt=0, le=1)
    """Part of the clients that is asked in a round, unless `size` is set."""
    size: int = Field(0, ge=0)
    """A number of clients a round; 0 goes by fraction."""
    draw: str = "exact"
    """`exact` asks that many, `coin` flips one for every client, `spaced` asks that many of those who have rested,
    module:function is a sampler of one's own."""
    gap: int = Field(1, ge=1)
    """With the draw `spaced`, rounds from one time that a client is asked to the next, at least."""
    weights: Literal["examples", "uniform"] = "examples"
    """ω_i in proportion to the client's number of examples, or all the same."""

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
        """Refuse a cohort that `clients` clients cannot make up."""
        if self.size > clients:
            raise SettingError("cohort.size", str(self.size), f"there are only {clients} clients")
        if self.gap * self.count(clients) > clients:
            few = f"{self.gap} rounds ask {self.gap * self.count(clients)} clients and there are only {clients}"
            raise SettingError("cohort.gap", str(self.gap), few)

    def count(self, clients: int) -> int:
        """M, the number of clients a round out of so many."""
        return min(self.size, clients) or max(1, round(self.fraction * clients))


class PopulationSettings(Section):
    """Who is there to be asked: everybody, or a set that changes from stage to stage."""

    present: int = Field(0, ge=0)
    """How many of the clients are there at a time; 0 has everybody there all the time."""
    stage: int = Field(100, ge=1)
    """Rounds from one change to the next."""
    replace: float = Field(0.5, ge=0, le=1)
    """Probability with which each client that is there makes way for one that is not."""

    def check(self, clients: int) -> None:
        """Refuse a population that `clients` clients cannot make up."""
        if self.present > clients:
            raise SettingError("population.present", str(self.present), f"there are only {clients} clients")
        absent = clients - self.present
        leaving = self.replace * self.present
        if leaving > absent:
            raise SettingError(
                "population.replace",
                f"{self.replace:g}",
                f"of {self.present} present clients {leaving:g} would leave a stage, and only {absent} are absent "
                "to take their places",
            )


class FailureSettings(Section):
    """What goes wrong with those who are asked."""

    drop: float = Field(0.0, ge=0, le=1)
    """Probability that a client's update never arrives."""
    straggle: float = Field(0.0, ge=0, le=1)
    """Probability that a client only does part of its local steps."""
    work: float = Field(0.5, gt=0, le=1)
    """That part; at least one step is done."""
    bad: float = Field(0.0, ge=0, le=1)
    """Part of the clients that is bad, the same ones all the time."""
    attack: Literal["sign-flip", "scale", "noise", "label-flip"] = "sign-flip"
    """What they do."""
    strength: float = Field(0.0, ge=0)
    """The factor of their lie; 0 is 1 for a flipped sign and for noise, and 10 for scaling."""

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
    """How long a visit takes in a federation of real devices, and who is waited for."""

    profile: str = ""
    """Devices and links of the clients: `phones`, `hospitals`, `datacentre`, or a trace, which is a file.csv. What
    is in it belongs to the experiment, so its checksum is put behind the path when a description is made."""
    deadline: float = Field(0.0, ge=0)
    """Seconds after which a round ends without those who are late; 0 waits for everybody."""
    over_select: float = Field(1.0, ge=1)
    """Ask so many times as many clients, and take the first answers."""

    @field_validator("profile")
    @classmethod
    def _known_profile(cls, profile: str) -> str:
        if trace := split_trace(profile):
            path, digest = Path(trace[0]).resolve(), trace[1]
            try:
                digest = digest or hashlib.sha256(read_whole(path, MOST_TEXT)).hexdigest()
            except (OSError, ValueError):  # told when devices are drawn; a report does without them
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
        """Whether answers may come too late."""
        return self.deadline > 0 or self.over_select > 1


class AsynchronousSettings(Section):
    """Rounds that wait for nobody: the server moves whenever so many answers have come."""

    buffer: int = Field(0, ge=0)
    """Answers that make a step of the server; 0 plays synchronous rounds."""
    staleness: float = Field(0.5, ge=0)
    """An answer to a broadcast of τ steps ago weighs (1 + τ)^−a; 0 weighs all the same."""
    aggregate: Literal["updates", "models"] = "updates"
    """Add up what clients changed, as FedBuff does, or mix their models into the server's, as FedAsync does."""
