"""The checksum that distributors publish."""

import hashlib


def md5(data: bytes) -> str:
    return hashlib.md5(data, usedforsecurity=False).hexdigest()
