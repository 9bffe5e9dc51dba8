"""Names of data sets, splits, networks and callbacks in a description; those of methods and parts are in
methods.py.
"""

DATA_SETS = (
    "digits",
    "mnist",
    "fashion-mnist",
    "cifar10",
    "cifar100",
    "tiny-imagenet",
    "femnist",
    "celeba",
    "shakespeare",
    "synthetic",
    "folder",
)
SPLITS = ("iid", "dirichlet", "dirichlet-unequal", "shards", "quantity", "natural")
MODELS = ("logistic", "mlp", "cnn", "lenet", "resnet18", "femnist-cnn", "celeba-cnn", "lstm")
CALLBACKS = ("early-stopping", "time-limit", "best-checkpoint")
PROFILES = ("phones", "hospitals", "datacentre")
GIVEN = "python"
"""Placeholder in a description for data or a model given as Python objects."""
