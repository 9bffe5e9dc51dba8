"""Seconds and memory of loading each data set, the first time and again.

    python benchmarks/data.py [--names femnist shakespeare] [--stand-ins]

Every load is in a process of its own; memory is its peak above what it had after the imports. The first load is
made in a data root of links, so that what was prepared before is neither used nor touched. With --stand-ins,
Tiny-ImageNet and CelebA are made up where they are missing: pictures of noise in the official layouts, all 110,000
of the one, 20,000 of the other's 202,599.
"""

import argparse
import io
import json
import os
import resource
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter

import numpy as np
import torch
from PIL import Image

from fedacg.data import catalogue
from fedacg.data.files import data_root

_PEOPLE, _PICTURES = 1000, 20_000


def load(name: str) -> None:
    """Load a data set, fetch a thousand of its examples, and print the cost; needs a new process."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    start = perf_counter()
    dataset = catalogue.load(name, partial=catalogue.FACTS[name].source is not None)
    seconds = perf_counter() - start
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    order = torch.randperm(len(dataset.train), generator=torch.Generator().manual_seed(0))
    start = perf_counter()
    for index in torch.split(order[:1000], 10):
        dataset.train.fetch(index)
    print(
        json.dumps(
            {
                "seconds": seconds,
                "megabytes": (peak - before) / 1000,
                "milliseconds per batch": 10 * (perf_counter() - start),
                "clients": len(dataset.owners.names) if dataset.owners else 0,
                "examples": len(dataset.train) + len(dataset.test),
            }
        )
    )


def measure(name: str, root: Path) -> dict[str, float]:
    environment = {**os.environ, "FEDACG_DATA": str(root)}
    command = [sys.executable, __file__, "--load", name]
    answer = subprocess.run(command, env=environment, check=True, stdout=subprocess.PIPE, text=True)
    found: dict[str, float] = json.loads(answer.stdout)
    return found


def link(root: Path) -> None:
    """Links to everything below the data root but what was prepared from it."""
    if data_root().is_dir():
        for entry in data_root().iterdir():
            if entry.name != "prepared":
                (root / entry.name).symlink_to(entry.resolve())


def pictures(width: int, height: int) -> list[bytes]:
    """Fifty JPEGs of soft noise, about as large as photographs of this size are."""
    rng = np.random.default_rng(0)
    made = []
    for _ in range(50):
        small = Image.fromarray(rng.integers(0, 256, (height // 4, width // 4, 3), dtype=np.uint8))
        stream = io.BytesIO()
        small.resize((width, height)).save(stream, "JPEG")
        made.append(stream.getvalue())
    return made


def make_tiny_imagenet(root: Path) -> None:
    folder, made = root / "tiny-imagenet-200", pictures(64, 64)
    wnids = [f"n{number:08d}" for number in range(200)]
    for wnid in wnids:
        images = folder / "train" / wnid / "images"
        images.mkdir(parents=True)
        for number in range(500):
            (images / f"{wnid}_{number}.JPEG").write_bytes(made[number % 50])
    images = folder / "val" / "images"
    images.mkdir(parents=True)
    for number in range(10_000):
        (images / f"val_{number}.JPEG").write_bytes(made[number % 50])
    lines = (f"val_{number}.JPEG\t{wnids[number % 200]}\t0\t0\t63\t63\n" for number in range(10_000))
    (folder / "val" / "val_annotations.txt").write_text("".join(lines))
    (folder / "wnids.txt").write_text("".join(f"{wnid}\n" for wnid in wnids))


def make_celeba(root: Path) -> None:
    folder, made = root / "celeba", pictures(178, 218)
    images = folder / "img_align_celeba"
    images.mkdir(parents=True)
    names = [f"{number:06d}.jpg" for number in range(1, _PICTURES + 1)]
    for number, name in enumerate(names):
        (images / name).write_bytes(made[number % 50])
    identities = (f"{name} {number % _PEOPLE + 1}\n" for number, name in enumerate(names))
    (folder / "identity_CelebA.txt").write_text("".join(identities))
    attributes = (f"{name} {1 if number % 2 else -1}\n" for number, name in enumerate(names))
    (folder / "list_attr_celeba.txt").write_text(f"{_PICTURES}\nSmiling\n" + "".join(attributes))


STAND_INS = {"tiny-imagenet": make_tiny_imagenet, "celeba": make_celeba}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--names", nargs="+", default=list(catalogue.FACTS), choices=list(catalogue.FACTS))
    parser.add_argument("--stand-ins", action="store_true")
    parser.add_argument("--load", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.load:
        load(options.load)
        return
    print(f"{'':16}{'':>10}{'':>9}{'first load':>16}{'again':>16}{'batch of':>10}")
    print(f"{'data set':16}{'examples':>10}{'clients':>9}{'s':>8}{'MB':>8}{'s':>8}{'MB':>8}{'10, ms':>10}")
    with TemporaryDirectory(prefix="fedacg-data-") as folder:
        root = Path(folder)
        link(root)
        for name in options.names:
            made_up = options.stand_ins and name in STAND_INS and catalogue.where(name) is None
            if made_up:
                STAND_INS[name](root)
            elif catalogue.where(name) is None:
                print(f"{name:16}  not in {data_root()}")
                continue
            first, again = measure(name, root), measure(name, root)
            print(
                f"{name + ('*' if made_up else ''):16}{first['examples']:10}{first['clients'] or '–':>9}"
                f"{first['seconds']:8.2f}{first['megabytes']:8.0f}{again['seconds']:8.3f}{again['megabytes']:8.0f}"
                f"{again['milliseconds per batch']:10.2f}"
            )
    if options.stand_ins:
        print("* made up, in the official layout")


if __name__ == "__main__":
    main()
