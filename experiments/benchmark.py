"""`python -m experiments.benchmark losses`: speed beside the floor and the peers, in one run."""

import statistics
import sys
import time

from experiments.command_line import quiet_tensorflow, run_command, usage_errors

DIMENSIONS = 512
SIZES = (120, 512, 2048)
IMAGES_PER_CLASS = 4
SECONDS = 2.0

HELP = f"""Speed of this library beside the floor and the peers, measured in one run.

  python -m experiments.benchmark losses

losses    milliseconds for value and gradient of each loss over pairs, float32, d = {DIMENSIONS},
          n = {", ".join(map(str, SIZES))}, {IMAGES_PER_CLASS} images a class; beside the floor (two
          n x n x d products) and pytorch-metric-learning, where it is installed.
"""


def main(argv):
    """Run the benchmark that is named."""
    if any(word in ("--help", "-h") for word in argv[1:]):
        print(HELP)
        return
    with usage_errors():
        if argv[1:] != ["losses"]:
            given = " ".join(argv[1:]) or "nothing"
            raise ValueError(f"name a benchmark: losses. Received: {given}")
    quiet_tensorflow()
    print(f"{'loss':<20}{'n':>6}{'ours, ms':>10}{'/ floor':>9}{'/ pytorch-metric-learning':>27}")
    for size in SIZES:
        batch = _batch(size)
        floor = _milliseconds(_floor(*batch))
        print(f"{'(floor)':<20}{size:>6}{floor:>10.2f}")
        for name, ours, peer in _losses(*batch):
            mine = _milliseconds(ours)
            beside = f"{mine / _milliseconds(peer):.2f}" if peer else "not installed"
            print(f"{name:<20}{size:>6}{mine:>10.2f}{mine / floor:>9.2f}{beside:>27}")


def _batch(size):
    import numpy as np

    rng = np.random.default_rng(0)
    embeddings = rng.normal(size=(size, DIMENSIONS)).astype("float32")
    return np.arange(size) // IMAGES_PER_CLASS, embeddings


def _floor(_, embeddings):
    import tensorflow as tf

    z = tf.constant(embeddings)

    @tf.function
    def products():
        return tf.matmul(tf.matmul(z, z, transpose_b=True), z)

    return lambda: products().numpy()


def _losses(labels, embeddings):
    """Name, our value and gradient, and the peer's (None where it is not installed)."""
    import tensorflow as tf

    from keras_dml import losses

    z, ids = tf.constant(embeddings), tf.constant(labels)

    def value_and_gradient(loss):
        @tf.function
        def step():
            with tf.GradientTape() as tape:
                tape.watch(z)
                value = loss(ids, z)
            return value, tape.gradient(value, z)

        return lambda: step()[1].numpy()

    peers = _peers(labels, embeddings)
    for name in ("contrastive", "multi_similarity"):
        yield name, value_and_gradient(losses.get(name)), peers.get(name)


def _peers(labels, embeddings):
    try:
        import torch
        from pytorch_metric_learning import distances
        from pytorch_metric_learning import losses as theirs
    except ImportError:
        return {}
    z, ids = torch.tensor(embeddings, requires_grad=True), torch.tensor(labels)

    def value_and_gradient(loss):
        def step():
            z.grad = None
            loss(z, ids).backward()

        return step

    euclidean = distances.LpDistance(normalize_embeddings=False)
    return {
        "contrastive": value_and_gradient(
            theirs.ContrastiveLoss(pos_margin=0, neg_margin=1, distance=euclidean)
        ),
        "multi_similarity": value_and_gradient(theirs.MultiSimilarityLoss(2, 50, 0.5)),
    }


def _milliseconds(step):
    """The median time of a call, after two to warm up."""
    step(), step()
    times, began = [], time.perf_counter()
    while len(times) < 5 or time.perf_counter() - began < SECONDS:
        start = time.perf_counter()
        step()
        times.append(time.perf_counter() - start)
    return 1000 * statistics.median(times)


if __name__ == "__main__":
    sys.exit(run_command(main))
