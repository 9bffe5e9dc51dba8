"""A map-style data set that makes examples on demand, shared by clients that hold positions in it.

Two worker processes do the training. They get the class below although it is defined in this script, and no
`if __name__ == "__main__"` is needed.
"""

import torch
from sklearn.datasets import load_digits
from torch import Tensor
from torch.utils.data import Dataset

import fedacg
from fedacg.data import MappedExamples


class Shifted(Dataset):
    """The digits, each moved sideways by a pixel or not at all; three examples for every image."""

    def __init__(self, images: Tensor, labels: Tensor) -> None:
        self.images, self.labels = images, labels

    def __len__(self) -> int:
        return 3 * len(self.labels)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        image, shift = divmod(index, 3)
        return self.images[image].roll(shift - 1, dims=-1), self.labels[image]


digits = load_digits()
x, y = torch.from_numpy(digits.images).unsqueeze(1) / 16, torch.from_numpy(digits.target)
train, test = Shifted(x[:1500], y[:1500]), (x[1500:], y[1500:])
positions = torch.randperm(len(train), generator=torch.Generator().manual_seed(0))
clients = [MappedExamples(train, part) for part in positions.split(90)]

torch.manual_seed(0)
net = torch.nn.Sequential(
    torch.nn.Conv2d(1, 8, 3, padding=1), torch.nn.ReLU(), torch.nn.Flatten(), torch.nn.Linear(512, 10)
)
result = fedacg.run(
    model=net,
    clients=clients,
    test=test,
    rounds=15,
    local_epochs=1,
    batch_size=10,
    workers=2,
    on_round=lambda metrics: print(f"round {metrics.round:2}  accuracy {metrics.test_accuracy:.3f}"),
)
print(f"{len(clients)} clients, {result.summary['parameters']} parameters")
