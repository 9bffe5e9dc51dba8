"""How often things are repeated: enough for every kind of case, or with FEDACG_THOROUGH=1 many times over."""

import os

THOROUGH = os.environ.get("FEDACG_THOROUGH", "") not in ("", "0")


def count(usual: int, thorough: int) -> int:
    """How often something is done."""
    return thorough if THOROUGH else usual
