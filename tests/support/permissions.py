"""Being an ordinary user for a while: root may read everything, whatever a file's mode says."""

import ctypes
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_VERSION_3 = 0x20080522
_OVERRIDE, _READ_SEARCH = 1 << 1, 1 << 2
"""CAP_DAC_OVERRIDE and CAP_DAC_READ_SEARCH."""


@contextmanager
def unreadable(path: Path) -> Iterator[None]:
    """A file or folder that nobody may read, not even root, as long as this lasts."""
    mode = path.stat().st_mode
    path.chmod(0)
    try:
        with _without(_OVERRIDE | _READ_SEARCH):
            yield
    finally:
        path.chmod(mode)


@contextmanager
def _without(capabilities: int) -> Iterator[None]:
    """This thread, without these of root's capabilities in effect."""
    if os.geteuid() != 0:
        yield
        return
    libc = ctypes.CDLL(None, use_errno=True)
    header = (ctypes.c_uint32 * 2)(_VERSION_3, 0)
    before = (ctypes.c_uint32 * 6)()
    if libc.capget(header, before):
        raise OSError(ctypes.get_errno(), "capget")
    less = (ctypes.c_uint32 * 6)(*before)
    less[0] &= ~capabilities
    if libc.capset(header, less):
        raise OSError(ctypes.get_errno(), "capset")
    try:
        yield
    finally:
        libc.capset(header, before)
