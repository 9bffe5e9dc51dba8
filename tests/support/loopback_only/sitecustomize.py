"""Keeps a Python process on this machine: whoever has this folder on PYTHONPATH can reach loopback only.

Every process leaves a line in the file that FEDACG_TEST_CONNECTIONS names, and one for each attempt to look up or
reach anything else; the attempt fails. Audit hooks see every socket of Python's, whichever library opens it.
"""

import ipaddress
import os
import sys
from typing import Any


def _note(line: str) -> None:
    descriptor = os.open(os.environ["FEDACG_TEST_CONNECTIONS"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(descriptor, f"{line}\n".encode())
    os.close(descriptor)


def _here(host: Any) -> bool:
    if host in (None, "", b"", "localhost"):
        return True
    try:
        address = ipaddress.ip_address(host.decode() if isinstance(host, bytes) else host)
    except ValueError:
        return False
    return address.is_loopback or address.is_unspecified


def _guard(event: str, arguments: tuple[Any, ...]) -> None:
    if event in ("socket.connect", "socket.sendto"):
        address = arguments[1]
        host = address[0] if isinstance(address, tuple) else None
    elif event in ("socket.getaddrinfo", "socket.gethostbyname"):
        host = arguments[0]
    else:
        return
    if not _here(host):
        _note(f"away {host} from {' '.join(sys.argv)}")
        raise ConnectionRefusedError(f"{host} is not this machine")


if os.environ.get("FEDACG_TEST_CONNECTIONS"):
    _note(f"here {' '.join(sys.orig_argv)}")
    sys.addaudithook(_guard)
