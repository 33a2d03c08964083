"""Needs PyTorch. Networks of `keras_dml.models` in torch, for `benchmark end_to_end`.

A network maps RGB images `[n, 3, s, s]` in 0..255 to feature maps `[n, c, h, w]`.
"""

from typing import Any

import torch
from torch import nn

from keras_dml.models.efficientnet_lite import STAGES
from keras_dml.models.imagenet_scaling import MEAN, STD

_WIDTHS = (32, 64, 128)


class _Scaled(nn.Module):
    """Computes `images * factor + offset`, for each color."""

    def __init__(self, factor: Any, offset: Any) -> None:
        super().__init__()
        for name, value in (("factor", factor), ("offset", offset)):
            # Not part of a checkpoint.
            each = torch.tensor(value).reshape(-1, 1, 1)
            self.register_buffer(name, each, persistent=False)

    def forward(self, images: Any) -> Any:
        """Return the scaled images."""
        return images * self.factor + self.offset


class _Residual(nn.Module):
    """Layers whose result is added to their input, or to a projection of it."""

    def __init__(self, layers: list[nn.Module], shortcut: list[nn.Module] | None = None) -> None:
        super().__init__()
        self.layers, self.shortcut = nn.Sequential(*layers), nn.Sequential(*(shortcut or ()))

    def forward(self, x: Any) -> Any:
        """Return the sum."""
        return self.layers(x) + self.shortcut(x)


def small_convnet() -> nn.Sequential:
    """Return `keras_dml.models.small_convnet`."""
    layers: list[nn.Module] = [_Scaled([1 / 127.5], [-1.0])]
    channels = 3
    for width in _WIDTHS:
        for stride in (2, 1):
            convolution = nn.Conv2d(channels, width, 3, stride, padding=1, bias=False)
            layers += [convolution, nn.BatchNorm2d(width, eps=1e-3), nn.ReLU()]
            channels = width
    return nn.Sequential(*layers)


def efficientnet_lite0() -> nn.Sequential:
    """Return `keras_dml.models.efficientnet_lite0`, with the parameters in its file's order."""
    layers = [_imagenet_scaled(), *_lite(3, 32, 3, 2)]
    channels = 32
    for repeats, size, first_stride, widening, width in STAGES:
        for repeat in range(repeats):
            stride, wide = (1 if repeat else first_stride), widening * channels
            block = [
                *(_lite(channels, wide, 1) if widening > 1 else ()),
                *_lite(wide, wide, size, stride, groups=wide),
                *_lite(wide, width, 1)[:-1],
            ]
            adds = stride == 1 and width == channels
            layers += [_Residual(block)] if adds else block
            channels = width
    return nn.Sequential(*layers, *_lite(channels, 1280, 1))


def resnet50_v1_5() -> nn.Sequential:
    """Return `keras_dml.models.resnet50_v1_5`."""
    layers = [_imagenet_scaled(), *_normed(3, 64, 7, 2), nn.ReLU(), nn.MaxPool2d(3, 2, padding=1)]
    channels = 64
    for stage, blocks in enumerate((3, 4, 6, 3)):
        width = 64 * 2**stage
        for number in range(blocks):
            stride = 2 if stage and not number else 1
            block = [
                *_normed(channels, width, 1), nn.ReLU(),
                *_normed(width, width, 3, stride), nn.ReLU(),
                *_normed(width, 4 * width, 1),
            ]  # fmt: skip
            projection = None if number else _normed(channels, 4 * width, 1, stride)
            layers += [_Residual(block, projection), nn.ReLU()]
            channels = 4 * width
    return nn.Sequential(*layers)


def _imagenet_scaled() -> nn.Module:
    factors = [1 / (255 * std) for std in STD]
    return _Scaled(factors, [-mean / std for mean, std in zip(MEAN, STD)])


def _normed(channels: int, width: int, size: int, stride: int = 1) -> list[nn.Module]:
    convolution = nn.Conv2d(channels, width, size, stride, padding=size // 2, bias=False)
    return [convolution, nn.BatchNorm2d(width)]


def _lite(
    channels: int, width: int, size: int, stride: int = 1, groups: int = 1
) -> list[nn.Module]:
    """Return a convolution with TensorFlow's padding of even maps, batch norm, and ReLU6."""
    near = size // 2 - (stride > 1)
    pad = [nn.ZeroPad2d((near, size // 2) * 2)] if size > 1 else []
    convolution = nn.Conv2d(channels, width, size, stride, groups=groups, bias=False)
    return [*pad, convolution, nn.BatchNorm2d(width, eps=1e-3), nn.ReLU6()]
