"""Reading the pickles of CIFAR's Python archives without running what a pickle may contain.

They are dictionaries of lists, texts and one array of bytes. Only what rebuilds such an array is
admitted; any other name in the pickle is refused before it is looked up.
"""

import io
import pickle
from collections.abc import Callable
from typing import Any

import numpy as np


class Refused(Exception):
    """The pickle is not one of CIFAR's."""


def _byte_dtype(code: object, *_: object) -> np.dtype[np.uint8]:
    if code != "u1":
        raise Refused(f"has an array of {code!r}, not of bytes")
    return np.dtype(np.uint8)


_reconstruct: Callable[..., Any] = np.empty(0).__reduce__()[0]  # type: ignore[assignment]  # numpy moved it
_ADMITTED: dict[tuple[str, str], Callable[..., Any]] = {
    ("numpy.core.multiarray", "_reconstruct"): _reconstruct,
    ("numpy._core.multiarray", "_reconstruct"): _reconstruct,
    ("numpy", "ndarray"): np.ndarray,
    ("numpy", "dtype"): _byte_dtype,
}


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str, /) -> Callable[..., Any]:
        try:
            return _ADMITTED[module, name]
        except KeyError:
            raise Refused(f"asks for {module}.{name}, which has no place in it") from None


def loads(data: bytes) -> dict[str, Any]:
    """The dictionary in a pickle that Python 2 wrote."""
    try:
        loaded = _Unpickler(io.BytesIO(data), encoding="latin1").load()
    except Refused:
        raise
    except Exception as error:  # damaged bytes make the unpickler raise nearly anything
        raise Refused(f"cannot be read as a pickle ({type(error).__name__}: {error})") from None
    if not isinstance(loaded, dict):
        raise Refused("is not a dictionary")
    return loaded
