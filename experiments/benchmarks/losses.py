"""Benchmark of the losses over pairs."""

import dataclasses
import importlib
import pkgutil
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from experiments.benchmarks import measuring
from experiments.options import Options, RunError, UsageError, option
from experiments.options.conversions import whole_numbers

IMAGES_PER_CLASS = 4
# The formula of a fused loss and some losses of the peer take n³ numbers.
_LARGEST_CUBIC = 512
_CUBIC_PEERS = (
    "angular",
    "ice",
    "lifted_structure",
    "margin",
    "nt_xent",
    "smooth_ap",
    "tcm",
    "triplet",
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class LossesOptions(Options):
    """Options of `benchmark losses`.

    Attributes:
        losses: Losses. Default: all losses over pairs.
        sizes: Batch sizes n.
        dimensions: Size d of the embeddings.
        xla: Measure TensorFlow also with XLA.
    """

    group = "Measured"

    command = "experiments.benchmark losses"
    intro = """Measure value and gradient of the losses over pairs on the backend that Keras uses.

  keras-dml benchmark losses [--losses=A,B] [--sizes=120,512,2048]

Float32 embeddings, 4 images per class. TensorFlow runs a graph, JAX a jitted function, and PyTorch
runs eagerly. Each row comes from a new process, and its calls run in turns.

  formula  median milliseconds of the formula (of a fused loss: up to n = 512)
  fused    median milliseconds of the fused implementation
  / floor  ratio to two n x n x d matrix products
  / peer   ratio to pytorch-metric-learning, if it is installed and has the loss
  XLA      median milliseconds when TensorFlow compiles the loss with XLA
  MB       peak memory of the loss, on a GPU the memory of the device
"""

    losses: tuple[str, ...] = option(())
    sizes: tuple[str, ...] = option(("120", "512", "2048"))
    dimensions: int = option(512, lower_bound=1)
    xla: bool = option(True)


def measure(options: LossesOptions) -> Iterator[str]:
    """Yield the lines of the table, and one line for each fused implementation.

    Raises:
        UsageError: A loss or size is invalid.
        RunError: A process failed, after the rows of the others.
    """
    import keras

    sizes = sorted(set(whole_numbers("sizes", options.sizes)))
    if not sizes or sizes[0] < 2:
        raise UsageError(f"sizes must be at least 2, but got {','.join(options.sizes)}.")
    known = pair_losses()
    for name in options.losses:
        if name not in known:
            raise UsageError(f"losses must be among {', '.join(known)}, but got {name}.")
    xla = options.xla and keras.backend.backend() == "tensorflow"
    columns = f"{'formula':>10}{'fused':>10}{'/ floor':>9}{'/ peer':>8}"
    yield f"{'loss':<18}{'n':>6}{columns}{'XLA':>10}{'MB':>8}  {keras.backend.backend()}"
    failed = []
    for name in options.losses or known:
        for size in sizes:
            try:
                for row in measuring.child_rows(measure_loss, name, size, options.dimensions, xla):
                    yield _line(row)
            except RunError as error:
                failed.append(f"{name} at n = {size}")
                yield f"{name:<18}{size:>6}  {error}"
    yield from fused_implementations()
    if failed:
        raise RunError(f"not measured: {', '.join(failed)}")


def pair_losses() -> list[str]:
    """Return the names of the losses over embeddings, without those over logits and proxies."""
    from keras_dml import losses

    return [
        name for name, loss in losses.LOSSES.items() if loss.kind not in ("classifier", "proxies")
    ]


def fused_implementations() -> Iterator[str]:
    """Yield a line for each fused implementation, with the first sentence of its docstring."""
    from keras_dml.losses import _fused

    for module in pkgutil.iter_modules(_fused.__path__):
        text = importlib.import_module(f"{_fused.__name__}.{module.name}").__doc__ or ""
        yield f"fused, {module.name}: {text.partition('.')[0]}"


def measure_loss(name: str, size: int, dimensions: int, xla: bool) -> Iterator[measuring.Row]:
    """Yield the row of one loss and batch size."""
    from keras_dml import losses

    class_ids = np.arange(size) // IMAGES_PER_CLASS
    z = np.random.default_rng(0).normal(size=(size, dimensions)).astype("float32")
    loss, formula = losses.get(name), losses.get(name)
    fused = getattr(loss, "fused", False)
    before, _, _ = _memory()
    step = _compiled(_value_and_gradient(loss), class_ids, z)
    step(), step()
    _, peak, device = _memory()
    steps = {"fused" if fused else "formula": step, "floor": _compiled(_products, class_ids, z)}
    if fused and size <= _LARGEST_CUBIC:
        formula.fused = False
        steps["formula"] = _compiled(_value_and_gradient(formula), class_ids, z)
    if xla:
        steps["XLA"] = _compiled(_value_and_gradient(loss), class_ids, z, jit_compile=True)
    if peer := _peer(name, class_ids, z):
        steps["peer"] = peer
    row = {"loss": name, "n": size, "MB": peak - before, "device": device}
    yield row | measuring.milliseconds_in_turns(steps)


def _line(row: measuring.Row) -> str:
    used = row.get("fused", row.get("formula"))
    numbers = [row.get("formula"), row.get("fused"), used / row["floor"]]
    numbers += [used / row["peer"] if "peer" in row else None, row.get("XLA")]
    columns = [
        f"{'–' if number is None else format(number, '.2f'):>{width}}"
        for number, width in zip(numbers, (10, 10, 9, 8, 10))
    ]
    return f"{row['loss']:<18}{row['n']:>6}{''.join(columns)}{row['MB']:>8.0f}  {row['device']}"


def _value_and_gradient(loss: Any) -> Callable[[Any, Any], Any]:
    """Return a function from class ids and embeddings to the loss and its gradient."""
    from keras_dml._backend.steps import gradients

    def differentiate(class_ids: Any, z: Any) -> Any:
        value, _, _, at_z = gradients(lambda z: (loss(class_ids, z), None), tensors=[z])
        return value, at_z

    return differentiate


def _products(class_ids: Any, z: Any) -> Any:
    """Compute the floor: two products, one of a forward pass and one of a backward pass."""
    from keras import ops

    return ops.matmul(ops.matmul(z, ops.transpose(z)), z)


def _compiled(
    call: Callable[..., Any], class_ids: Any, z: Any, jit_compile: bool = False
) -> measuring.Step:
    """Compile a call as training does. The step waits for the device."""
    import keras

    arguments = keras.ops.convert_to_tensor(class_ids), keras.ops.convert_to_tensor(z)
    if keras.backend.backend() == "jax":
        import jax

        compiled = jax.jit(call)
        return lambda: jax.block_until_ready(compiled(*arguments))
    if keras.backend.backend() == "torch":
        return lambda: _wait_for_torch(call(*arguments))
    import tensorflow as tf

    graph = tf.function(call, jit_compile=jit_compile)

    def step() -> None:
        graph(*arguments)
        tf.test.experimental.sync_devices()

    return step


def _wait_for_torch(result: Any) -> Any:
    import torch

    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return result


def _memory() -> tuple[float, float, str]:
    """Return the megabytes in use, the highest so far, and the device."""
    import keras

    held: tuple[int, int] | None = None
    if keras.backend.backend() == "jax":
        import jax

        if statistics := jax.devices()[0].memory_stats():
            held = statistics["bytes_in_use"], statistics["peak_bytes_in_use"]
    elif keras.backend.backend() == "torch":
        import torch

        if torch.cuda.is_available():
            held = torch.cuda.memory_allocated(), torch.cuda.max_memory_allocated()
    else:
        import tensorflow as tf

        if tf.config.list_logical_devices("GPU"):
            statistics = tf.config.experimental.get_memory_info("GPU:0")
            held = statistics["current"], statistics["peak"]
    if held is None:
        return measuring.resident_megabytes(), measuring.peak_megabytes(), "CPU"
    return held[0] / 2**20, held[1] / 2**20, "GPU"


def _peer(name: str, class_ids: np.ndarray, z: np.ndarray) -> measuring.Step | None:
    """Return a step of pytorch-metric-learning with our settings, or None if it has no such loss.

    None also if it is not installed, or needs n³ numbers that do not fit.
    """
    try:
        import torch
        from pytorch_metric_learning import distances, losses, reducers
    except ImportError:
        return None
    if name in _CUBIC_PEERS and len(class_ids) > _LARGEST_CUBIC:
        return None
    euclidean = distances.LpDistance(normalize_embeddings=False)
    peers: dict[str, Callable[[], Any]] = {
        "contrastive": lambda: losses.ContrastiveLoss(0, 1, distance=euclidean),
        "snca": lambda: losses.NCALoss(20, distance=distances.CosineSimilarity()),
        "multi_similarity": lambda: losses.MultiSimilarityLoss(2, 50, 0.5),
        "triplet": lambda: losses.TripletMarginLoss(0.2, reducer=reducers.MeanReducer()),
        "fastap": lambda: losses.FastAPLoss(10),
        "lifted_structure": lambda: losses.LiftedStructureLoss(),
        "ice": lambda: losses.NTXentLoss(1 / 64),
        "nt_xent": lambda: losses.NTXentLoss(0.07),
        "supcon": lambda: losses.SupConLoss(0.1),
        "circle": lambda: losses.CircleLoss(0.4, 80),
        "angular": lambda: losses.AngularLoss(45),
        "margin": lambda: losses.MarginLoss(),
        "n_pairs": lambda: losses.NPairsLoss(),
        "histogram": lambda: losses.HistogramLoss(150),
        "ranked_list": lambda: losses.RankedListLoss(0.4, Tn=10, alpha=1.2),
        "smooth_ap": lambda: losses.SmoothAPLoss(),
        "tcm": lambda: losses.ThresholdConsistentMarginLoss(),
    }
    if name not in peers:
        return None
    loss = peers[name]()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    embeddings = torch.tensor(z, device=device, requires_grad=True)
    ids = torch.tensor(class_ids, device=device)

    def step() -> None:
        embeddings.grad = None
        _wait_for_torch(loss(embeddings, ids).backward())

    return step
