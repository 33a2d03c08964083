"""Trainings in torch with pytorch-metric-learning, for `end_to_end`."""

import importlib.resources
import itertools
import os
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeAlias

import numpy as np

from experiments.benchmarks import measuring
from experiments.options import RunOptions, parse
from keras_dml.models.backbones import NO_WEIGHTS, PACKAGED_WEIGHTS

#: Losses that torch or pytorch-metric-learning has with the same formula.
LOSSES = ("multi_similarity", "ce")
#: The functions of `torch_networks`, by the names of their backbones.
NETWORKS = ("small_convnet", "efficientnet_lite0", "resnet50_v1_5")

_Batch: TypeAlias = tuple[Any, Any]


def can_train(options: RunOptions) -> bool:
    """Return whether `train` has the network, the weights, and the loss of a run."""
    return (
        options.backbone in NETWORKS
        and options.weights in (NO_WEIGHTS, PACKAGED_WEIGHTS)
        and options.loss in LOSSES
        and not options.cache_features
    )


def train(words: Sequence[str], steps: int, rates: Sequence[float]) -> Iterator[measuring.Row]:
    """Train with the images, batches, network, and learning rates of a run, and yield the row.

    Args:
        words: Flags of the run.
        steps: Number of steps.
        rates: Learning rate of each step.
    """
    import torch

    from experiments.options import data

    options = parse(RunOptions, ["experiments.run", *words])
    split = data.load(options)
    torch.manual_seed(0)
    images = _drawings if split.train.arrays is not None else _photographs
    next_batch, test_images = images(options, split)
    net, dimensions = _network(options)
    loss, head = _loss(options, dimensions, split.train.num_classes)
    slow, fast = list(net[0].parameters()), [*net[1:].parameters(), *head.parameters()]
    groups = [{"params": slow, "factor": options.pretrained_factor}, {"params": fast, "factor": 1}]
    optimizer = torch.optim.Adam([group for group in groups if group["params"]], lr=rates[0])

    def backward(x: Any, y: Any) -> Any:
        optimizer.zero_grad()
        value = loss(head(net(x)), y)
        value.backward()
        return value

    def step(x: Any, y: Any) -> float:
        value = backward(x, y)
        optimizer.step()
        return float(value.detach())

    ends = []
    _let_train(net, options)
    for rate in rates:
        for group in optimizer.param_groups:
            group["lr"] = rate * group["factor"]
        step(*next_batch())
        ends.append(time.perf_counter())
    row = {"images": options.batch_size, "MB": measuring.peak_megabytes()}
    row["step"] = 1000 * (ends[-1] - ends[0]) / (steps - 1)
    row["R@1"] = _recall(net, test_images, split.test.labels)
    row["data"] = measuring.milliseconds_of_a_batch(next_batch, min(steps, 50))
    _let_train(net, options)
    x, y = next_batch()
    row |= measuring.milliseconds_in_turns(
        {
            "f+b": lambda: head(net(x)).sum().backward(),
            "with loss": lambda: backward(x, y),
            "whole": lambda: step(x, y),
        }
    )
    yield row


def _drawings(options: RunOptions, split: Any) -> tuple[Callable[[], _Batch], Iterator[Any]]:
    """Return the next batch of random crops of gray images in memory, and the test images."""
    import torch

    from experiments.options import data

    side, size = int(options.resize or options.image_size), options.image_size
    # Resized once, as a user would do it.
    images, tested = (_resized(table, side) for table in (split.train, split.test))
    labels = torch.tensor(split.train.labels)
    sampler, numbers = data.sampler(options, split.train, options.seed), itertools.count()

    def next_batch() -> _Batch:
        rows = sampler(next(numbers))
        return _random_crops(images[rows], size), labels[rows]

    first = (side - size) // 2
    tested = tested[:, :, first : first + size, first : first + size]
    return next_batch, (part.repeat(1, 3, 1, 1) for part in tested.split(240))


def _photographs(options: RunOptions, split: Any) -> tuple[Callable[[], _Batch], Iterator[Any]]:
    """Return the next batch and the test images. Processes decode and crop them with Pillow."""
    import torch

    import pipelines
    from experiments.options import data

    sampler = data.sampler(options, split.train, options.seed)
    workers, evaluation = os.cpu_count() or 1, data.evaluation_transform(options)
    training = pipelines.BatchSource(
        split.train, sampler, data.training_transform(options), options.seed
    )
    tested = pipelines.BatchSource(
        split.test,
        _EachRow(),
        lambda source, _: evaluation.with_pillow(source),
        num_steps=len(split.test),
    )
    load = torch.utils.data.DataLoader
    batches = iter(load(training, batch_size=None, num_workers=workers))
    each = load(tested, batch_size=options.eval_batch_size, num_workers=workers)

    def next_batch() -> _Batch:
        images, labels = next(batches)
        return images.permute(0, 3, 1, 2), labels

    return next_batch, (images[:, 0].permute(0, 3, 1, 2) for images, _ in each)


class _EachRow:
    """A sampler whose batches are the rows of a table in order."""

    batch_size = 1

    def __call__(self, step: int) -> np.ndarray:
        """Return the row."""
        return np.array([step])


def _resized(table: Any, side: int) -> Any:
    import torch

    images = torch.tensor(table.arrays).permute(0, 3, 1, 2).float()
    return torch.nn.functional.interpolate(images, (side, side), mode="bilinear")


def _random_crops(images: Any, size: int) -> Any:
    import torch

    room = images.shape[-1] - size + 1
    y, x = torch.randint(room, (2, len(images), 1)) + torch.arange(size)
    rows = torch.arange(len(images))[:, None, None]
    crops = images[rows, 0, y[:, :, None], x[:, None, :]]
    return crops[:, None].repeat(1, 3, 1, 1)


def _network(options: RunOptions) -> tuple[Any, int]:
    """Return the backbone with the pooling and the projection, and the size of embeddings."""
    import torch
    from torch import nn

    from experiments.benchmarks import torch_networks
    from keras_dml.models.efficientnet_lite import PACKAGED
    from keras_dml.models.torch_files import read_tensors

    backbone = getattr(torch_networks, options.backbone)()
    if options.weights == PACKAGED_WEIGHTS:
        package, _, inside = PACKAGED.partition("/")
        arrays = read_tensors(str(importlib.resources.files(package) / inside))
        # In the order of the layers. The classifier at the end has no place.
        tensors = map(torch.tensor, arrays.values())
        backbone.load_state_dict(dict(zip(backbone.state_dict(), tensors)))
    channels = [each for each in backbone.modules() if isinstance(each, nn.Conv2d)][-1].out_channels
    size = options.embedding_size
    head = nn.Identity() if size is None else nn.Linear(channels, size)
    layers = backbone, nn.AdaptiveAvgPool2d(1), nn.Flatten(), head
    return nn.Sequential(*layers), size or channels


def _let_train(net: Any, options: RunOptions) -> None:
    """Set the mode of the training, in which trained weights keep their statistics."""
    from torch import nn

    net.train()
    frozen = options.frozen_batch_norm
    for layer in net.modules():
        if isinstance(layer, nn.BatchNorm2d):
            layer.train(not (options.weights != NO_WEIGHTS if frozen is None else frozen))


def _loss(options: RunOptions, dimensions: int, classes: int) -> tuple[Any, Any]:
    """Return the loss, and the layers between the embeddings and the loss."""
    from pytorch_metric_learning import losses, miners
    from torch import nn

    if options.loss == "ce":
        classifier = nn.Sequential(nn.Dropout(options.dropout), nn.Linear(dimensions, classes))
        return nn.CrossEntropyLoss(label_smoothing=0.1), classifier
    loss, miner = losses.MultiSimilarityLoss(2, 50, 0.5), miners.MultiSimilarityMiner(0.1)
    return lambda z, y: loss(z, y, miner(z, y)), nn.Identity()


def _recall(net: Any, images: Iterator[Any], labels: np.ndarray) -> float:
    """Return R@1 by cosine."""
    import torch

    from keras_dml.metrics import recall_at_k

    net.eval()
    with torch.no_grad():
        embeddings = torch.cat([net(part) for part in images]).numpy()
    return recall_at_k(embeddings, labels, [1])[1]
