"""The flat vector: views that stay views, layouts that change nothing but the order, buffers apart."""

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.nn.utils import parameters_to_vector

from fedacg import models
from fedacg.core.vector import FlatModel, clone, sha256


def small_net() -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return nn.Sequential(
            nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 36, 5)
        ).double()


@pytest.mark.parametrize("channels_last", [False, True])
def test_parameters_and_gradients_are_views(channels_last: bool) -> None:
    net = small_net()
    expected = parameters_to_vector(net.parameters()).detach().clone()
    flat = FlatModel(net, channels_last=channels_last)
    assert torch.equal(flat.canonical(), expected)
    x, y = torch.randn(6, 3, 8, 8, dtype=torch.float64), torch.randint(5, (6,))
    reference = small_net()
    cross_entropy(reference(x), y).backward()
    cross_entropy(net(flat.prepare(x)), y).backward()
    gradients = torch.cat([p.grad.reshape(-1) for p in net.parameters()])
    torch.testing.assert_close(
        gradients, torch.cat([p.grad.reshape(-1) for p in reference.parameters()]), rtol=0, atol=1e-14
    )
    assert float(flat.g.norm()) == pytest.approx(float(gradients.norm()))
    with torch.no_grad():
        flat.w.add_(flat.g, alpha=-0.1)
    moved = flat.canonical()
    torch.testing.assert_close(moved, expected - 0.1 * gradients)


@pytest.mark.parametrize("shift", [0, 1, 3])
def test_a_gradient_elsewhere_leaves_w_alone_and_has_the_same_bits_wherever_the_vector_lies(shift: int) -> None:
    flat = FlatModel(models.build("cnn", classes=10, shape=(3, 32, 32)), channels_last=True)
    before, elsewhere = flat.w.clone(), flat.w + 0.01
    x, y = flat.prepare(torch.randn(4, 3, 32, 32)), torch.tensor([0, 1, 2, 3])

    def gradient() -> torch.Tensor:
        flat.g.zero_()
        cross_entropy(flat.module(x), y).backward()
        return flat.g.clone()

    lies = torch.empty(len(elsewhere) + shift)[shift:].copy_(elsewhere)
    with flat.at(lies):
        found = gradient()
    assert torch.equal(flat.w, before)
    flat.w.copy_(elsewhere)
    assert torch.equal(found, gradient())
    flat.w.copy_(before)
    assert not torch.equal(found, gradient())


def test_a_released_module_is_an_ordinary_one() -> None:
    flat = FlatModel(small_net(), channels_last=True)
    expected = flat.canonical()
    module = flat.release()
    flat.w.zero_()
    assert torch.equal(parameters_to_vector(module.parameters()), expected)
    assert all(p.grad is None and p.is_contiguous() for p in module.parameters())


def test_gradients_of_a_second_backward_land_in_the_same_memory() -> None:
    net = small_net()
    flat = FlatModel(net)
    address = flat.g.data_ptr()
    for _ in range(2):
        flat.g.zero_()
        net(torch.randn(2, 3, 8, 8, dtype=torch.float64)).sum().backward()
        assert next(net.parameters()).grad.data_ptr() == address
        assert flat.g.abs().sum() > 0


def test_channels_last_changes_the_order_and_not_the_function() -> None:
    net = small_net().eval()
    x = torch.randn(4, 3, 8, 8, dtype=torch.float64)
    expected = net(x)
    plain, last = FlatModel(clone(net)), FlatModel(clone(net), channels_last=True)
    assert not torch.equal(plain.w, last.w)
    assert torch.equal(plain.w.sort().values, last.w.sort().values)
    torch.testing.assert_close(last.module(last.prepare(x)), expected, rtol=0, atol=1e-13)


def test_buffers_travel_beside_the_parameters() -> None:
    flat = FlatModel(small_net())
    before = flat.read_buffers()
    assert before.tolist() == [0.0] * 4 + [1.0] * 4 + [0.0]
    flat.module(torch.randn(3, 3, 8, 8, dtype=torch.float64))
    after = flat.read_buffers()
    assert after[-1] == 1
    assert not torch.equal(before[:8], after[:8])
    flat.write_buffers(before + 0.6)
    assert flat.read_buffers().tolist() == [0.6] * 4 + [1.6] * 4 + [1.0]


def test_a_copy_shares_nothing_with_the_users_model() -> None:
    net = small_net()
    before = parameters_to_vector(net.parameters()).detach().clone()
    flat = FlatModel(clone(net))
    flat.w.zero_()
    flat.write_buffers(flat.read_buffers() + 1)
    assert torch.equal(parameters_to_vector(net.parameters()), before)
    assert float(net[1].running_mean.sum()) == 0


def test_frozen_and_tied_parameters_are_counted_rightly() -> None:
    net = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    net[1].weight = net[0].weight
    net[1].bias.requires_grad_(False)
    assert FlatModel(net).w.numel() == 9 + 3
    with pytest.raises(ValueError, match="no trainable parameters"):
        FlatModel(nn.Sequential(nn.ReLU()))


def test_resnet18_is_one_vector_of_11_173_962() -> None:
    assert FlatModel(models.build("resnet18", classes=10)).w.numel() == 11_173_962


def test_sha256_is_of_the_bytes() -> None:
    assert sha256(torch.zeros(0)) == "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
    assert sha256(torch.zeros(2)) != sha256(torch.zeros(3))
