"""Augmentation, against a slow image-by-image version of torchvision's conventions; and the pipelines."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from fedacg.data.pipelines import Augment, ImagePipeline, PlainPipeline, transform


def rotated(image: Tensor, degrees: float) -> tuple[Tensor, Tensor]:
    """Counter-clockwise about the centre, nearest neighbour, zeros outside: as PIL's Image.rotate does it.

    With it, where the answer is sure: a source on the border of two pixels is rounding's to decide.
    """
    _, height, width = image.shape
    cos, sin = math.cos(math.radians(degrees)), math.sin(math.radians(degrees))
    out, sure = torch.zeros_like(image), torch.ones(1, height, width, dtype=torch.bool)
    for row in range(height):
        for column in range(width):
            x, y = column + 0.5 - width / 2, row + 0.5 - height / 2
            source_x, source_y = cos * x - sin * y + width / 2, sin * x + cos * y + height / 2
            from_column, from_row = math.floor(source_x), math.floor(source_y)
            if 0 <= from_column < width and 0 <= from_row < height:
                out[:, row, column] = image[:, from_row, from_column]
            sure[:, row, column] = min(abs(source_x - round(source_x)), abs(source_y - round(source_y))) > 1e-9
    return out, sure


def reference(
    image: Tensor, degrees: float, down: int, across: int, mirror: bool, padding: int
) -> tuple[Tensor, Tensor]:
    _, height, width = image.shape
    out, sure = rotated(image, degrees)
    cuts = [
        torch.nn.functional.pad(whole, (padding,) * 4, value=fill)[
            :, down : down + height, across : across + width
        ]
        for whole, fill in ((out, 0), (sure, 1))
    ]
    return (cuts[0].flip(2), cuts[1].flip(2)) if mirror else (cuts[0], cuts[1])


def batch(count: int, *shape: int) -> Tensor:
    return torch.randint(1, 256, (count, *shape), dtype=torch.uint8, generator=torch.Generator().manual_seed(1))


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@settings(deadline=None)
@given(
    degrees=st.floats(-180, 180),
    padding=st.integers(0, 4),
    down=st.integers(0, 8),
    across=st.integers(0, 8),
    mirror=st.booleans(),
    shape=st.sampled_from([(3, 9, 9), (1, 8, 8), (2, 7, 10)]),
)
def test_one_gather_does_what_rotation_crop_and_flip_do_one_after_another(
    degrees: float, padding: int, down: int, across: int, mirror: bool, shape: tuple[int, int, int]
) -> None:
    shifts = 2 * padding + 1
    down, across = down % shifts, across % shifts
    x = batch(2, *shape)
    # The second image stays put, to see that every image has its own transformation.
    fast = transform(
        x,
        torch.tensor([math.radians(degrees), 0.0], dtype=torch.float64),
        torch.tensor([down, padding]),
        torch.tensor([across + mirror * shifts, padding]),
        padding,
    )
    expected, sure = reference(x[0], degrees, down, across, mirror, padding)
    assert torch.equal(fast[0] * sure, expected * sure)
    assert torch.equal(fast[1], x[1])


def test_a_quarter_turn_is_counter_clockwise() -> None:
    x = batch(1, 1, 4, 4)
    here = torch.tensor([0])
    turned = transform(x, torch.tensor([math.pi / 2 - 1e-9], dtype=torch.float64), here, here, 0)
    assert torch.equal(turned, x.rot90(1, (2, 3)))


def test_random_draws_cover_all_crops_both_mirrors_and_the_whole_range_of_angles() -> None:
    """Each image tells its crop and mirror by where one marked pixel of a still image goes."""
    x = torch.zeros(4000, 1, 9, 9, dtype=torch.uint8)
    x[:, 0, 4, 3] = 1
    out = Augment(degrees=0, padding=2, flip=True)(x, generator())
    places = torch.nonzero(out)[:, 2:]
    assert len(places) == 4000
    rows, columns = places[:, 0].bincount(minlength=9), places[:, 1].bincount(minlength=9)
    assert rows.tolist()[:2] + rows.tolist()[7:] == [0] * 4
    assert ((rows[2:7] > 700) & (rows[2:7] < 900)).all()  # five shifts, 800 each
    # Unmirrored the mark lands in columns 1 to 5, mirrored in 3 to 7; where both go, twice as often.
    assert columns.tolist()[0] == columns.tolist()[8] == 0
    for column, expected in zip(range(1, 8), (400, 400, 800, 800, 800, 400, 400), strict=True):
        assert abs(columns[column] - expected) < 100


def test_rotation_stays_within_its_degrees_and_uses_them() -> None:
    x = torch.zeros(500, 1, 65, 65, dtype=torch.uint8)
    x[:, 0, 32, 64] = 1  # straight right of the centre, 32 pixels out
    out = Augment(degrees=10, padding=0, flip=False)(x, generator())
    found = torch.nonzero(out)
    rise = torch.atan2((32 - found[:, 2]).double(), (found[:, 3] - 32).double()).rad2deg()
    assert rise.abs().max() < 11.5
    assert rise.min() < -8.5
    assert rise.max() > 8.5


def test_without_flip_nothing_is_mirrored() -> None:
    x = torch.zeros(200, 1, 5, 5, dtype=torch.uint8)
    x[:, 0, 2, 0] = 1
    out = Augment(degrees=0, padding=0, flip=False)(x, generator())
    assert torch.equal(out, x)


def test_the_same_generator_gives_the_same_batch_to_the_bit() -> None:
    x, augment = batch(10, 3, 32, 32), Augment()
    assert torch.equal(augment(x, generator(3)), augment(x, generator(3)))
    assert not torch.equal(augment(x, generator(3)), augment(x, generator(4)))
    assert not torch.equal(augment(x, advanced := generator(3)), augment(x, advanced))


def test_the_global_generator_is_left_alone() -> None:
    before = torch.get_rng_state()
    Augment()(batch(4, 3, 32, 32), generator())
    assert torch.equal(before, torch.get_rng_state())


def test_the_batch_itself_is_not_changed() -> None:
    x = batch(4, 3, 32, 32)
    kept = x.clone()
    ImagePipeline((0.5,) * 3, (0.25,) * 3, Augment())(x, generator())
    assert torch.equal(x, kept)


def test_a_selection_of_a_larger_tensor_can_be_augmented() -> None:
    x = batch(8, 3, 16, 16)
    strided = x[::2]
    assert torch.equal(Augment()(strided, generator()), Augment()(strided.contiguous(), generator()))


def test_the_pipeline_normalises_each_channel() -> None:
    x = torch.tensor([0, 16], dtype=torch.uint8).view(1, 2, 1, 1)
    out = ImagePipeline((0.25, 0.5), (0.5, 0.25), white=16)(x)
    assert out.dtype == torch.float32
    assert out.flatten().tolist() == pytest.approx([-0.5, 2.0])


def test_the_pipeline_augments_only_with_a_generator_and_when_it_has_an_augmentation() -> None:
    x = batch(10, 3, 32, 32)
    still, moving = (ImagePipeline((0.5,) * 3, (0.25,) * 3, augment) for augment in (None, Augment()))
    assert torch.equal(still(x, generator()), still(x))
    assert torch.equal(moving(x), still(x))
    assert not torch.equal(moving(x, generator()), still(x))


def test_the_plain_pipeline_scales_bytes_and_passes_the_rest() -> None:
    plain = PlainPipeline()
    assert plain(torch.tensor([0, 255], dtype=torch.uint8)).tolist() == [0.0, 1.0]
    for x in (torch.tensor([1, 2]), torch.tensor([1.5], dtype=torch.float64)):
        assert plain(x) is x
