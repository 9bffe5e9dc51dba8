"""The README's example: fifty clients, each with one or two digits, train one network."""

import torch
from sklearn.datasets import load_digits

import fedacg

x, y = map(torch.from_numpy, load_digits(return_X_y=True))
by_label = y[:1500].argsort(stable=True)
clients = list(zip((x[by_label] / 16).split(30), y[by_label].split(30), strict=True))

torch.manual_seed(0)
net = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 10))
result = fedacg.run(model=net, clients=clients, test=(x[1500:] / 16, y[1500:]), rounds=60, batch_size=10)

for round in (1, 20, 40, 60):
    print(f"round {round:2}  accuracy {result.history.accuracy_at(round):.3f}")
print(f"moving average {result.summary['moving_average']:.3f}, {result.history.total_bytes / 1e6:.1f} MB sent")
