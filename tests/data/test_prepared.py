"""Prepared data sets: made once and whole, made anew when something changed, mapped and not carried along."""

import errno
import fcntl
import json
import os
import pickle
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import cloudpickle
import numpy as np
import pytest
import torch

from fedacg.data import prepared
from fedacg.data.files import Listing
from fedacg.data.prepared import MappedArray, StoredExamples, array_file, prepare
from fedacg.errors import InputError

EXAMPLES = 50


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A data root with a source file in it, and a home folder of its own."""
    root = tmp_path / "root"
    root.mkdir()
    (root / "source").write_bytes(b"some data")
    monkeypatch.setenv("FEDACG_DATA", str(root))
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    return root


class Maker:
    """Fills a folder with examples and counts how often it was asked to."""

    def __init__(self, examples: int = EXAMPLES) -> None:
        self.examples, self.asked = examples, 0

    def __call__(self, folder: Path) -> None:
        self.asked += 1
        x = array_file(folder, "train-x", (self.examples, 3, 4, 4))
        x[:] = np.random.default_rng(0).integers(0, 256, x.shape, dtype=np.uint8)
        np.save(folder / "train-y.npy", np.arange(self.examples, dtype=np.uint8))


def make(root: Path, maker: Callable[[Path], None], version: int = 1) -> Path:
    return prepare(version, Listing("set", root, root, ("source",)), maker)


def visible(folder: Path) -> list[Path]:
    return [path for path in folder.iterdir() if not path.name.endswith(".lock")]


def test_it_is_made_once_and_lies_in_the_data_root(root: Path) -> None:
    maker = Maker()
    folder = make(root, maker)
    assert make(root, maker) == folder
    assert maker.asked == 1
    assert folder.parent == root / "prepared"
    assert visible(folder.parent) == [folder]
    assert np.load(folder / "train-y.npy").tolist() == list(range(EXAMPLES))


def overwrite(source: Path) -> None:
    """Other contents of the same size, with the old time."""
    facts = source.stat()
    source.write_bytes(b"Some data")
    os.utime(source, ns=(facts.st_atime_ns, facts.st_mtime_ns))


@pytest.mark.parametrize(
    "change",
    [lambda source: source.write_bytes(b"other data!"), overwrite],
    ids=["size", "contents alone"],
)
def test_changed_contents_make_another_and_leave_the_old_one(root: Path, change: Callable[[Path], object]) -> None:
    maker = Maker()
    old = make(root, maker)
    change(root / "source")
    new = make(root, maker)
    assert maker.asked == 2
    assert sorted(visible(root / "prepared")) == sorted([old, new])
    assert make(root, maker) == new
    assert maker.asked == 2


def test_the_same_contents_are_recognised_wherever_they_lie_and_read_only_once_there(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    maker = Maker()
    folder = make(root, maker)
    (root / "source").rename(tmp_path / "moved")
    moved = Listing("set", tmp_path, tmp_path, ("moved",))
    assert prepare(1, moved, maker) != folder, "another name is another file"
    (tmp_path / "moved").rename(tmp_path / "source")
    elsewhere = Listing("set", tmp_path, tmp_path, ("source",))
    assert prepare(1, elsewhere, maker) == folder
    (root / "source").write_bytes(b"some data")  # a copy, with times of its own
    assert make(root, maker) == folder
    assert maker.asked == 2
    monkeypatch.setattr(Listing, "digest", lambda *_: pytest.fail("the contents were read again"))
    assert prepare(1, elsewhere, maker) == make(root, maker) == folder


def test_moving_the_data_root_prepares_nothing_anew(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    maker = Maker()
    before = make(root, maker)
    root.rename(tmp_path / "elsewhere")
    monkeypatch.setenv("FEDACG_DATA", str(tmp_path / "elsewhere"))
    monkeypatch.setattr(Listing, "digest", lambda *_: pytest.fail("the contents were read again"))
    assert make(tmp_path / "elsewhere", maker) == tmp_path / "elsewhere" / "prepared" / before.name
    assert maker.asked == 1


def test_files_that_change_while_they_are_read_are_refused(root: Path) -> None:
    def change(folder: Path) -> None:
        (root / "source").write_bytes(b"other data!")

    with pytest.raises(InputError, match=f"data set 'set': {root} changed while it was read; try again"):
        make(root, change)
    assert visible(root / "prepared") == []


def test_a_fresh_one_is_made_in_place_of_the_old_one(root: Path) -> None:
    maker = Maker()
    folder = make(root, maker)
    (folder / "train-x.npy").write_bytes((folder / "train-x.npy").read_bytes()[:-3] + b"???")
    assert make(root, maker) == folder
    assert maker.asked == 1, "what is wrong in the middle of an array is not looked for at every load"
    assert prepare(1, Listing("set", root, root, ("source",)), maker, fresh=True) == folder
    assert maker.asked == 2
    assert not (folder / "train-x.npy").read_bytes().endswith(b"???")
    assert visible(root / "prepared") == [folder]


def test_paths_that_are_not_utf8_are_prepared_like_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = tmp_path / os.fsdecode(b"caf\xe9")
    root.mkdir()
    (root / "source").write_bytes(b"some data")
    (root / os.fsdecode(b"na\xefve")).write_bytes(b"more")
    monkeypatch.setenv("FEDACG_DATA", str(root))
    maker = Maker()
    files = Listing("set", root, root, ("source", os.fsdecode(b"na\xefve")))
    folder = prepare(1, files, maker)
    assert prepare(1, files, maker) == folder
    assert maker.asked == 1
    assert len(StoredExamples.open(folder, "train")) == EXAMPLES


def test_another_version_makes_another(root: Path) -> None:
    maker = Maker()
    assert make(root, maker, version=1) != make(root, maker, version=2)
    assert maker.asked == 2


def test_a_source_that_is_gone_is_named(root: Path) -> None:
    (root / "source").unlink()
    with pytest.raises(InputError, match=rf"{root}/source cannot be read \(No such file"):
        make(root, Maker())


@pytest.mark.parametrize(
    "spoil",
    [
        lambda folder: (folder / "train-x.npy").write_bytes((folder / "train-x.npy").read_bytes()[:-1]),
        lambda folder: (folder / "train-y.npy").unlink(),
        lambda folder: (folder / "train-x.npy").write_bytes(b"?" + (folder / "train-x.npy").read_bytes()[1:]),
        lambda folder: (folder / "manifest.json").write_text('{"train-x'),
        lambda folder: (folder / "manifest.json").write_text("[]"),
        lambda folder: (folder / "manifest.json").unlink(),
    ],
    ids=["cut short", "file gone", "damaged header", "half a manifest", "no manifest", "manifest gone"],
)
def test_one_that_is_not_whole_is_made_anew(root: Path, spoil: Callable[[Path], object]) -> None:
    maker = Maker()
    folder = make(root, maker)
    before = (folder / "train-x.npy").read_bytes()
    spoil(folder)
    assert make(root, maker) == folder
    assert maker.asked == 2
    assert (folder / "train-x.npy").read_bytes() == before
    assert (folder / "train-y.npy").exists()


@pytest.mark.parametrize("error", [InputError("bad data"), KeyboardInterrupt(), RuntimeError("a bug")])
def test_a_failed_preparation_leaves_nothing_behind(root: Path, error: BaseException) -> None:
    def fail(folder: Path) -> None:
        (folder / "half").write_bytes(b"half")
        raise error

    with pytest.raises(type(error)):
        make(root, fail)
    assert visible(root / "prepared") == []


def test_what_a_killed_process_left_is_swept_away(root: Path, tmp_path: Path) -> None:
    def stop(folder: Path) -> None:
        (folder / "half").write_bytes(b"half")
        shutil.copytree(folder.parent, tmp_path / "aside" / folder.parent.name)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        make(root, stop)
    left = next((tmp_path / "aside").iterdir())
    left.rename(root / "prepared" / left.name)
    folder = make(root, Maker())
    assert visible(root / "prepared") == [folder]


def test_a_full_disk_is_met_as_an_error_that_names_the_folder(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(InputError, match=f"{root}/prepared/set-.*: cannot be made: .*No space left on device"):
        make(root, Maker())
    assert visible(root / "prepared") == []


def test_the_room_of_an_array_is_taken_at_once(tmp_path: Path) -> None:
    array_file(tmp_path, "x", (1 << 20,))
    facts = (tmp_path / "x.npy").stat()
    assert facts.st_size == (1 << 20) + 128
    assert facts.st_blocks * 512 >= facts.st_size


def test_threads_that_prepare_at_the_same_time_wait_for_the_first(root: Path) -> None:
    maker = Maker()
    together = threading.Barrier(4)
    folders = []

    def work() -> None:
        together.wait()
        folders.append(make(root, maker))

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(folders) == 4
    assert len(set(folders)) == 1
    assert maker.asked == 1


SCRIPT = """
import pathlib, sys, tempfile, time
import numpy as np
from fedacg.data.files import Listing
from fedacg.data.prepared import StoredExamples, array_file, prepare

root = pathlib.Path(sys.argv[1])

def make(folder):
    print("made")
    time.sleep(0.3)
    array_file(folder, "train-x", (5,))[:] = 7
    np.save(folder / "train-y.npy", np.arange(5))

tempfile.mkdtemp(dir=root, prefix="ready")
while len(list(root.glob("ready*"))) < 2:
    time.sleep(0.01)
examples = StoredExamples.open(prepare(1, Listing("set", root, root, ("source",)), make), "train")
assert examples.x.tensor.tolist() == [7] * 5
"""


@pytest.mark.slow
def test_processes_that_prepare_at_the_same_time_both_end_well(root: Path) -> None:
    command = [sys.executable, "-c", SCRIPT, str(root)]
    processes = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    printed = [process.communicate(timeout=60)[0] for process in processes]
    assert [process.returncode for process in processes] == [0, 0]
    assert sorted(printed) == ["", "made\n"]
    assert len(visible(root / "prepared")) == 1


def test_without_locks_the_faster_one_wins_and_the_other_takes_what_it_made(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_locks(*_: object) -> None:
        raise OSError(errno.ENOTSUP, "Operation not supported")

    monkeypatch.setattr(fcntl, "flock", no_locks)
    faster = Maker()
    inside = []

    def slower(folder: Path) -> None:
        inside.append(make(root, faster))
        (folder / "late").write_bytes(b"")

    folder = make(root, slower)
    assert inside == [folder]
    assert sorted(path.name for path in folder.iterdir()) == ["manifest.json", "train-x.npy", "train-y.npy"]
    assert visible(root / "prepared") == [folder]


def test_a_data_root_that_cannot_be_written_is_replaced_by_the_cache(root: Path, tmp_path: Path) -> None:
    (root / "prepared").write_bytes(b"in the way")
    maker = Maker()
    folder = make(root, maker)
    assert folder.parent == tmp_path / "home" / ".cache" / "fedacg" / "prepared"
    assert make(root, maker) == folder
    assert maker.asked == 1


def test_a_data_root_that_may_not_be_written_is_still_read(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    maker = Maker()
    folder = make(root, maker)
    access = os.access
    monkeypatch.setattr(
        os, "access", lambda path, mode: not Path(path).is_relative_to(root) and access(path, mode)
    )
    assert make(root, maker) == folder
    (root / "source").write_bytes(b"other")
    assert not make(root, maker).is_relative_to(root)
    assert maker.asked == 2


def test_nowhere_to_write_is_told(root: Path, tmp_path: Path) -> None:
    (root / "prepared").write_bytes(b"in the way")
    (tmp_path / "home").write_bytes(b"in the way")
    with pytest.raises(InputError, match=f"{tmp_path}/home/.cache/fedacg/prepared: cannot be written.*{root}"):
        make(root, Maker())


@pytest.mark.parametrize("pickler", [pickle, cloudpickle], ids=lambda module: module.__name__)
def test_examples_travel_as_paths(root: Path, pickler: object) -> None:
    examples = StoredExamples.open(make(root, Maker(10_000)), "train")
    index = torch.tensor([3, 999, 3])
    x, y = examples.fetch(index)
    data = pickler.dumps(examples)  # type: ignore[attr-defined]
    assert len(data) < 1000
    again = pickle.loads(data)
    assert len(again) == 10_000
    assert torch.equal(again.fetch(index)[0], x)
    assert torch.equal(again.fetch(index)[1], y)


def test_examples_are_fetched_by_position_with_labels_as_whole_numbers(root: Path) -> None:
    folder = make(root, Maker())
    examples = StoredExamples.open(folder, "train")
    x, y = examples.fetch(torch.tensor([49, 0, 7]))
    assert (len(examples), x.dtype, y.dtype) == (EXAMPLES, torch.uint8, torch.int64)
    assert np.array_equal(x.numpy(), np.load(folder / "train-x.npy")[[49, 0, 7]])
    assert y.tolist() == [49, 0, 7]
    assert examples.labels(torch.tensor([5])).tolist() == [5]


def test_writing_to_a_mapped_array_does_not_reach_the_file(root: Path) -> None:
    folder = make(root, Maker())
    before = (folder / "train-y.npy").read_bytes()
    array = MappedArray(folder / "train-y.npy")
    array.tensor[0] = 99
    assert (folder / "train-y.npy").read_bytes() == before
    assert MappedArray(folder / "train-y.npy").tensor[0] == 0


def test_no_examples_at_all_can_be_stored(root: Path) -> None:
    examples = StoredExamples.open(make(root, Maker(0)), "train")
    assert len(examples) == 0
    assert examples.fetch(torch.arange(0))[0].shape == (0, 3, 4, 4)


def test_a_header_that_is_damaged_while_it_is_used_is_named(root: Path) -> None:
    folder = make(root, Maker())
    (folder / "train-x.npy").write_bytes(b"garbage" * 100)
    with pytest.raises(InputError, match=f"{folder}/train-x.npy: cannot be read as an array"):
        StoredExamples.open(folder, "train").fetch(torch.tensor([0]))


def test_the_manifest_names_every_file(root: Path) -> None:
    folder = make(root, Maker())
    files = json.loads((folder / prepared.MANIFEST).read_text())["files"]
    assert {name: size for name, (size, _) in files.items()} == {
        name: (folder / name).stat().st_size for name in ("train-x.npy", "train-y.npy")
    }
