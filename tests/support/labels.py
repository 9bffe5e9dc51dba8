"""Examples of which only the labels matter."""

import torch

from fedacg.data.examples import TensorExamples


def examples(*held: int) -> TensorExamples:
    return TensorExamples(torch.zeros(len(held), 1), torch.tensor(held))
