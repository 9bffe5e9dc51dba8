"""Your own data set, here scikit-learn's wines: a client is a range of colour, so each client has few cultivars.

From the shell, in this folder:
fedacg run quickstart --set data.name=add_a_data_set:load --set data.split=natural --set data.clients=0
"""

import numpy as np
from sklearn.datasets import load_wine

from fedacg.config.experiment import Experiment
from fedacg.data import Dataset, dataset
from fedacg.runs.build import prepare
from fedacg.runs.runner import play


def load() -> Dataset:
    x, y = load_wine(return_X_y=True)
    x = (x - x.mean(axis=0)) / x.std(axis=0)
    colour = np.digitize(x[:, 9], np.quantile(x[:, 9], np.arange(0.1, 1, 0.1)))
    test = np.arange(len(y)) % 4 == 0
    return dataset(train=(x[~test], y[~test]), test=(x[test], y[test]), clients=colour[~test], name="wine")


if __name__ == "__main__":
    data = {"name": "add_a_data_set:load", "split": "natural", "clients": 0}
    experiment = Experiment.parse({"rounds": 20, "data": data, "cohort": {"size": 3}, "local": {"batch": 10}})
    result = play(experiment, prepare(experiment))
    print(f"{result.summary['method']} on {data['name']}: accuracy {result.summary['accuracy']:.3f}")
