"""FedDC whose server does not add the mean of the drifts, to see what that addition does.

PYTHONPATH=benchmarks fedacg run cifar10-large-small --method feddc_without_h:feddc
"""

from fedacg.config.methods import Entry, rate
from fedacg.core.round import Round
from fedacg.methods.feddc import DriftServer
from fedacg.methods.feddc import feddc as with_h
from fedacg.methods.method import Method
from fedacg.methods.rules import State, Totals


class WithoutDrift(DriftServer):
    """θ ← mean_S(w_i), without FedDC's + h"""

    def step(self, state: State, totals: Totals, round: Round) -> State:
        moved = super().step(state, totals, round)
        return {**moved, "theta": moved["theta"] - moved["h"]}


feddc = Entry(
    name="feddc-without-h",
    title="FedDC without h",
    reference="a control",
    equation="FedDC with θ ← mean_S(w_i)",
    options={"alpha": rate(0.01)},
    build=lambda alpha: Method(WithoutDrift(), objective=with_h(alpha).objective),
)
