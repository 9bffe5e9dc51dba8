"""The network `cnn` with a projection head, as MOON's authors train with one: two linear layers before the last.

PYTHONPATH=benchmarks fedacg run cifar10-large-small --method moon --set model.name=projection_head:cnn_projected
"""

from torch import nn

from fedacg.models import StagedModel, build


def cnn_projected(shape: tuple[int, ...], classes: int, *, width: int = 64) -> StagedModel:
    """`cnn`, then a hidden layer of 256 and a projection of `width`, which features are compared in."""
    body = build("cnn", classes=classes, shape=shape)
    assert isinstance(body, StagedModel)
    assert isinstance(body.head, nn.Linear)
    hidden = nn.Sequential(nn.Linear(body.head.in_features, 256), nn.ReLU(inplace=True), nn.Linear(256, width))
    return StagedModel([*body.stages, hidden], nn.Linear(width, classes), channels_last=True)
