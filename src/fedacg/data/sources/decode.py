"""Decoding JPEG files, here or in a process of its own.

Run as a program, it decodes what comes in on its standard input and writes the pixels into a file. It imports
nothing of this package, so that a process starts at once and stays small: without torch it needs 40 MB.
"""

import io
import os
import pickle
import signal
import sys
import warnings
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

LARGEST = 1 << 26
"""Bytes of a file, and pixels of an image, beyond which it cannot be part of a data set."""

Fault = tuple[int, str]
"""Which of several images cannot be decoded, and why."""


class Undecodable(Exception):
    """What is wrong with an image."""


def decode(data: bytes, side: int, *, resize: bool) -> NDArray[np.uint8]:
    """The pixels (3, side, side) of a JPEG file; a grey image has three equal channels."""
    from PIL import Image, UnidentifiedImageError  # only where there are images to decode

    try:
        with Image.open(io.BytesIO(data), formats=("JPEG",)) as image:
            width, height = image.size
            if not resize and (width, height) != (side, side):
                raise Undecodable(f"is {width}×{height} pixels, not {side}×{side}")
            if width * height > LARGEST:
                raise Undecodable(f"is {width}×{height} pixels, too large to be part of the data set")
            # Resized before it is converted, as LEAF does.
            shaped = image.resize((side, side), Image.Resampling.BICUBIC) if resize else image
            return np.asarray(shaped.convert("RGB")).transpose(2, 0, 1)
    except Image.DecompressionBombError:
        raise Undecodable("is an image too large to be part of the data set") from None
    except (OSError, SyntaxError, ValueError) as error:
        reason = "not a JPEG file" if isinstance(error, UnidentifiedImageError) else error
        raise Undecodable(f"cannot be decoded ({reason})") from None


def decode_into(file: int, at: int, images: Sequence[bytes], side: int, *, resize: bool) -> Fault | None:
    """Write the pixels of images into a file, from a position on; the first that cannot be decoded ends it."""
    pixels = np.empty((len(images), 3, side, side), np.uint8)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Pillow's, about metadata that are not part of the picture
        for number, data in enumerate(images):
            try:
                pixels[number] = decode(data, side, resize=resize)
            except Undecodable as what:
                return number, str(what)
    left = memoryview(pixels.data).cast("B")
    while left:
        written = os.pwrite(file, left, at)
        left, at = left[written:], at + written
    return None


def main() -> None:
    """Decode batches of images, (position in the file, images), until the input ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent handles Ctrl-C and closes the input
    path, side, resize = sys.argv[1], int(sys.argv[2]), sys.argv[3] == "resize"
    file = os.open(path, os.O_WRONLY)
    while True:
        try:
            at, images = pickle.load(sys.stdin.buffer)
        except EOFError:
            break
        pickle.dump(decode_into(file, at, images, side, resize=resize), sys.stdout.buffer)
        sys.stdout.buffer.flush()


if __name__ == "__main__":
    main()
