"""Checksums of what is written as JSON: the last entry of an object covers every character before it.

They find damage, not malice: whoever can change a file can also seal it again.
"""

import json
import re
import zlib
from typing import Any

from fedacg.errors import InputError


class NotJson(InputError):
    """Text that is no JSON, as when it was cut off."""


_SEAL = re.compile(rb',\s*"check": "([0-9a-f]{8})"\s*\}\s*')


def seal(text: str) -> str:
    """A JSON object as text with its checksum as a last entry, in the same style."""
    body = text.rstrip()[:-1].rstrip()
    check = f'"check": "{zlib.crc32(body.encode()):08x}"'
    return f"{body},\n  {check}\n}}\n" if "\n" in body else f"{body}, {check}}}"


def unseal(content: bytes, *, sealed: bool = True) -> dict[str, Any]:
    """The object of a text that `seal` wrote, without its checksum; what does not fit is an InputError.

    Without `sealed`, text of a time when there were no checksums is read as well.
    """
    end = content.rfind(b",")
    match = _SEAL.fullmatch(content, end) if end >= 0 else None
    if match and int(match[1], 16) != zlib.crc32(content[:end]):
        raise InputError("damaged: its checksum does not fit")
    try:
        record = json.loads(content.decode())
    except json.JSONDecodeError as error:
        raise NotJson(f"not JSON: {error.msg}") from error
    except UnicodeDecodeError:
        raise NotJson("not JSON: not text") from None
    except (ValueError, RecursionError) as error:  # numbers of thousands of digits, thousands of brackets
        raise InputError(f"cannot be read: {error}") from None
    if not isinstance(record, dict):
        raise InputError("not a JSON object")
    if match is None and sealed:
        raise InputError("damaged: has no checksum")
    record.pop("check", None)
    return record
