"""The training of the glyphs net in torch with pytorch-metric-learning, for `end_to_end`."""

import itertools
import time
from collections.abc import Iterator, Sequence
from typing import Any

from experiments.benchmarks import measuring
from experiments.options import RunOptions, parse

_WIDTHS = (32, 64, 128)


def train(words: Sequence[str], steps: int, rates: Sequence[float]) -> Iterator[measuring.Row]:
    """Train with the images, batches, network, and learning rates of a run, and yield the row.

    Args:
        words: Flags of the run.
        steps: Number of steps.
        rates: Learning rate of each step.
    """
    import torch

    import pipelines

    options = parse(RunOptions, ["experiments.run", *words])
    split = pipelines.load_dataset(
        "glyphs", train_classes=options.train_classes, test_classes=options.test_classes
    )
    each = options.of_samplers["images_per_class"]
    sampler = pipelines.BalancedSampler(
        split.train.labels, options.batch_size // each, each, options.seed
    )
    torch.manual_seed(0)
    side = int(options.resize or options.image_size)
    images = _resized(split.train, side)
    labels = torch.tensor(split.train.labels)

    def batch(step: int) -> tuple[Any, Any]:
        rows = sampler(step)
        return _random_crops(images[rows], options.image_size), labels[rows]

    net = _small_convnet(options.embedding_size or 128)
    loss, head = _loss(options.loss, options.embedding_size or 128, split.train.num_classes)
    variables = [*net.parameters(), *head.parameters()]
    optimizer = torch.optim.Adam(variables, lr=rates[0])

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
    for number, rate in enumerate(rates):
        optimizer.param_groups[0]["lr"] = rate
        step(*batch(number))
        ends.append(time.perf_counter())
    row = {"images": options.batch_size, "MB": measuring.peak_megabytes()}
    row["step"] = 1000 * (ends[-1] - ends[0]) / (steps - 1)
    row["R@1"] = _recall(net, split.test, side, options.image_size)
    numbers = itertools.count()
    row["data"] = measuring.milliseconds_of_a_batch(lambda: batch(next(numbers)), min(steps, 50))
    net.train()
    x, y = batch(0)
    row |= measuring.milliseconds_in_turns(
        {
            "f+b": lambda: head(net(x)).sum().backward(),
            "with loss": lambda: backward(x, y),
            "whole": lambda: step(x, y),
        }
    )
    yield row


def _resized(table: Any, side: int) -> Any:
    """Return the images at the size before the crop. This is done once, as a user would do it."""
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


def _small_convnet(dimensions: int) -> Any:
    """Return `keras_dml.models.small_convnet` with its head."""
    from torch import nn

    layers: list[Any] = []
    channels = 3
    for width in _WIDTHS:
        for stride in (2, 1):
            layers += [
                nn.Conv2d(channels, width, 3, stride, padding=1, bias=False),
                nn.BatchNorm2d(width, eps=1e-3),
                nn.ReLU(),
            ]
            channels = width
    head = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, dimensions)]

    class Scaled(nn.Sequential):
        """The network on pixels in 0..255."""

        def forward(self, images: Any) -> Any:
            return super().forward(images / 127.5 - 1)

    return Scaled(*layers, *head)


def _loss(name: str, dimensions: int, classes: int) -> tuple[Any, Any]:
    """Return the loss, and the layer between the embeddings and the loss."""
    from pytorch_metric_learning import losses, miners
    from torch import nn

    if name == "ce":
        return nn.CrossEntropyLoss(label_smoothing=0.1), nn.Linear(dimensions, classes)
    loss, miner = losses.MultiSimilarityLoss(2, 50, 0.5), miners.MultiSimilarityMiner(0.1)
    return lambda z, y: loss(z, y, miner(z, y)), nn.Identity()


def _recall(net: Any, table: Any, side: int, size: int) -> float:
    """Return R@1 by cosine of the central crops."""
    import torch

    from keras_dml.metrics import recall_at_k

    net.eval()
    first = (side - size) // 2
    images = _resized(table, side)[:, :, first : first + size, first : first + size]
    with torch.no_grad():
        parts = [net(part.repeat(1, 3, 1, 1)) for part in images.split(240)]
    return recall_at_k(torch.cat(parts).numpy(), table.labels, [1])[1]
