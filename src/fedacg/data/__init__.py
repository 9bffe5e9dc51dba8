"""Data: sets in their distributors' formats, splits, clients as views on shared tensors, augmentation."""

from fedacg.data.examples import Clients, Examples, FederatedData, TensorExamples
from fedacg.data.own import MappedExamples, from_pairs

__all__ = ["Clients", "Examples", "FederatedData", "MappedExamples", "TensorExamples", "from_pairs"]
