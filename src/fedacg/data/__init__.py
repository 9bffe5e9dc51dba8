"""Data: data sets in their distributors' formats, splits, clients as views of shared tensors, augmentation."""

from fedacg.data.examples import Clients, Dataset, Examples, FederatedData, TensorExamples
from fedacg.data.own_data import dataset, from_pairs
from fedacg.data.own_forms import LazyClients, MappedExamples
from fedacg.data.own_tables import by_client, columns

__all__ = [
    "Clients",
    "Dataset",
    "Examples",
    "FederatedData",
    "LazyClients",
    "MappedExamples",
    "TensorExamples",
    "by_client",
    "columns",
    "dataset",
    "from_pairs",
]
