"""The targets of a table: the paper's own at paper scale, and a rule at small scale.

At small scale a small network learns for a tenth of the rounds, so the paper's targets say nothing. But they can
be read as shares of what FedAvg ends at there: 73 % is 102 % of 71.45 %. The rule keeps the shares:

    share  = the paper's target / the paper's accuracy of FedAvg in the last round, in whole percent
    target = share × FedAvg's moving average in the last round here, mean over seeds, cut to a tenth of a percent

So no result but FedAvg's own is looked at.

Cut and not rounded, so that FedAvg itself reaches a target of 100 %. A target is at least 0.1 % and at most 100 %.
"""

import math

from fedacg.bench.published import method_of, value_of
from fedacg.config.experiment import Experiment
from fedacg.config.recipe import find

REFERENCE = "fedavg"
"""The method that targets at small scale are set by."""


def paper_targets(recipe: str) -> tuple[float, ...]:
    """The paper's targets in a setting, as fractions of one."""
    return Experiment.parse(find(recipe)).evaluate.targets


def shares(recipe: str) -> tuple[int, ...]:
    """What these are of FedAvg's last accuracy in the paper, in whole percent."""
    rounds = Experiment.parse(find(recipe)).rounds
    reference = value_of("", recipe, method_of(REFERENCE), "accuracy", rounds)
    assert reference is not None, "the paper has FedAvg in every setting"
    return tuple(round(100 * 100 * target / float(reference)) for target in paper_targets(recipe))


def small_targets(recipe: str, reference: float) -> tuple[float, ...]:
    """Targets for a setting in which FedAvg ended at this moving average, a fraction of one."""
    # Nine digits first, as 100 × 0.57 is a little less than 57 in floating point.
    tenths = [math.floor(round(10 * share * reference, 9)) for share in shares(recipe)]
    return tuple(min(max(tenth, 1), 1000) / 1000 for tenth in tenths)
