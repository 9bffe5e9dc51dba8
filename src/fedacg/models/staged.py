"""A network as stages and a head, so that features, branches and layer comparisons need no special cases.

Here lives the one class that every network of the catalogue is; the networks themselves are built in
dense.py and convolutional.py. Nothing here knows of methods, data or training.
"""

from collections.abc import Iterable
from itertools import islice

from torch import Tensor, nn


class StagedModel(nn.Module):
    """`head(stage_L(… stage_0(x)))`.

    A stage ends with its own activation, and the last one with its pooling and flattening too: what a
    stage puts out is what the next one takes, so a feature passes its activation exactly once however
    the stages of two networks are mixed. No stage may write into what it is given.

    `channels_last` is the memory layout in which this network was measured to train fastest
    (benchmarks/layout.py): a preference about weights and inputs; with None the run chooses. The results do not
    depend on it beyond rounding.
    """

    def __init__(self, stages: Iterable[nn.Module], head: nn.Module, *, channels_last: bool | None = None) -> None:
        super().__init__()
        self.stages = nn.ModuleList(stages)
        self.head = head
        self.channels_last = channels_last

    def forward(self, x: Tensor) -> Tensor:
        return self.branch(x, 0)

    def features(self, x: Tensor) -> Tensor:
        """The head's input: the last stage's output, shape (B, d)."""
        for stage in self.stages:
            x = stage(x)
        return x

    def stage_outputs(self, x: Tensor) -> list[Tensor]:
        """The output of every stage, in order; the last is `features(x)`."""
        outputs = []
        for stage in self.stages:
            x = stage(x)
            outputs.append(x)
        return outputs

    def branch(self, x: Tensor, first: int) -> Tensor:
        """The logits from x, taken in at stage `first`: the output of stage l goes on at `first = l + 1`.

        `first = len(stages)` is the head alone, `first = 0` the whole network.
        """
        for stage in islice(self.stages, first, None):
            x = stage(x)
        logits: Tensor = self.head(x)
        return logits
