"""Data: sets in their distributors' formats, splits, clients as views on shared tensors, augmentation."""

from fedacg.data.examples import Clients, Dataset, Examples, FederatedData, TensorExamples
from fedacg.data.own import MappedExamples, dataset, from_pairs

__all__ = [
    "Clients",
    "Dataset",
    "Examples",
    "FederatedData",
    "MappedExamples",
    "TensorExamples",
    "dataset",
    "from_pairs",
]
