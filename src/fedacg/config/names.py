"""The names that data sets, splits, networks and callbacks go by in a description; methods.py has those of methods
and their parts.
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
"""Stands in a description for data or a model that were handed over as objects."""
