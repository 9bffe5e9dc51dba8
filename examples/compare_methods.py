"""Several methods from Python on the same clients, as a table.

The command line does the same with pictures: fedacg compare quickstart --methods fedavg,fedacg
"""

import torch
from sklearn.datasets import load_digits

import fedacg

TARGET = 0.7
METHODS: dict[str, dict[str, float]] = {
    "fedavg": {},
    "fedavgm": {"beta": 0.85},
    "fedavg+acg": {"lam": 0.85},
    "fedacg": {"lam": 0.85, "beta": 0.01},
}

x, y = map(torch.from_numpy, load_digits(return_X_y=True))
by_label = y[:1500].argsort(stable=True)
clients = list(zip((x[by_label] / 16).split(30), y[by_label].split(30), strict=True))
torch.manual_seed(0)
net = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 10))

print(f"{'method':12}{'average':>9}{f'rounds to {TARGET:.0%}':>16}{'MB sent':>9}")
for method, options in METHODS.items():
    result = fedacg.run(
        model=net,
        clients=clients,
        test=(x[1500:] / 16, y[1500:]),
        method=method,
        options=options,
        rounds=60,
        batch_size=10,
        targets=[TARGET],
    )
    history, summary = result.history, result.summary
    (rounds,) = summary["rounds_to"].values()
    print(f"{method:12}{summary['moving_average']:>9.3f}{rounds:>16}{history.total_bytes / 1e6:>9.2f}")
print("average: moving average of the test accuracy after the last round; + means not reached")
