"""Write tests/support/peers/goldens.npz: inputs, values and gradients of the losses of two peers.

tensorflow-addons and pytorch-metric-learning need separate environments, and the first an old
TensorFlow. For this reason, the tests read stored results. To rebuild the file, run these commands
in this order from the root of the project:

    python3.11 -m venv /tmp/addons
    /tmp/addons/bin/pip install -r tests/support/peers/requirements-tensorflow-addons.txt
    /tmp/addons/bin/python tests/support/peers/goldens.py tensorflow-addons

    python3.11 -m venv /tmp/pytorch
    /tmp/pytorch/bin/pip install -r tests/support/peers/requirements-pytorch-metric-learning.txt
    /tmp/pytorch/bin/python tests/support/peers/goldens.py pytorch-metric-learning

The first command draws the inputs and starts the file. The second command reads the inputs and adds
its results. Names of the arrays: `inputs/…`, and for a case of a peer `PEER/BATCH/CASE/value` and
`…/gradient`, the gradient with respect to the embeddings (or similarities, or distances), and
`…/of weights`, the gradient with respect to proxies or boundaries. The tests look up the arguments
of a case by its name in ADDONS_CASES, LEARNING_CASES, and PROXY_CASES.
"""

import pathlib
import sys

import numpy as np

FILE = pathlib.Path(__file__).with_name("goldens.npz")

METRICS = ("L2", "squared-L2", "angular", "inner", "lopsided")
"""Distances: three by name, and two functions (`distance_function`)."""

# Case: (name of the function, its arguments; a distance_metric in METRICS).
ADDONS_CASES = {
    "lifted": ("lifted_struct_loss", {}),
    "lifted, margin 0.4": ("lifted_struct_loss", {"margin": 0.4}),
    "semihard, margin 0.4": ("triplet_semihard_loss", {"margin": 0.4}),
    "hard, margin 0.4": ("triplet_hard_loss", {"margin": 0.4}),
}
for metric in METRICS:
    with_metric = {"distance_metric": metric}
    ADDONS_CASES[f"semihard, {metric}"] = ("triplet_semihard_loss", with_metric)
    ADDONS_CASES[f"hard, {metric}"] = ("triplet_hard_loss", with_metric)
    ADDONS_CASES[f"soft, {metric}"] = ("triplet_hard_loss", {"soft": True, **with_metric})

ADDONS_BATCHES = ("small", "large", "ties", "one class", "no positives")
LEARNING_BATCHES = ("small", "large")

# Case: arguments.
LEARNING_CASES = {
    "contrastive tightness": {},
    "contrastive, two margins": {
        "margin": 1.1, "positive_margin": 0.6, "power": 1, "normalize": True,
    },
    "contrastive, below 0": {
        "margin": 0.3841, "positive_margin": -0.2, "power": 1, "normalize": True,
    },
    "snca": {"temperature": 0.1},
    "multi_similarity": {"alpha": 2.0, "beta": 50.0, "base": 0.5},
    "multi_similarity, other": {"alpha": 3.0, "beta": 10.0, "base": 0.2},
    "fastap": {"num_bins": 10},
    "ice": {"scale": 16.0},
    "triplet": {"margin": 0.2},
    "supcon": {"temperature": 0.1},
    "nt_xent": {"temperature": 0.2},
    "circle": {"margin": 0.4, "scale": 80.0},
    "margin": {"margin": 0.2, "beta": 1.2, "sampling": "all"},
    "distance weights": {"nearest": 0.5, "farthest": 1.4},
}  # fmt: skip

SMOOTH_AP = {"temperature": 0.05, "query_in_database": True}
"""For the batch "square" only: the peer needs m classes of m images, in order."""

MEMORY = {"batch": "large", "memory_size": 48, "steps": 3}
"""Split the batch into `steps` parts for a memory that overflows at the third part."""

MEMORY_CASES = ("multi_similarity, other", "triplet", "supcon", "nt_xent", "circle")
"""Cases of LEARNING_CASES, without snca: the peer treats an anchor's copy as a neighbor."""

BOUNDARIES = {"margin": 0.2, "nu": 0.3, "sampling": "all"}
"""The margin loss with a boundary for each class; initial values: `inputs/BATCH/boundaries`."""

# Case: arguments of the loss, centers and pooling of the head.
PROXY_CASES = {
    "norm_softmax": ({"temperature": 0.05}, 1, "max"),
    "cosface": ({"scale": 64.0, "margin": 0.35}, 1, "max"),
    "arcface": ({"scale": 64.0, "margin": 0.5}, 1, "max"),
    "arcface, other": ({"scale": 8.0, "margin": 1.6}, 1, "max"),
    "subcenter_arcface": ({"scale": 16.0, "margin": 0.3}, 3, "max"),
    "soft_triple": ({"scale": 20.0, "margin": 0.01}, 3, "soft"),
    "proxy_nca": ({"temperature": 1 / 9}, 1, "max"),
    "proxy_anchor": ({"scale": 32.0, "margin": 0.1}, 1, "max"),
}

SUMMED = ("contrastive tightness", "contrastive, two margins", "contrastive, below 0", "ice")
"""Cases in which the peer sums over the batch: their values are divided by n."""

STEPS, BATCH, RATE = 20, 32, 0.05


def draw_inputs():
    """Draw the batches, and the images, classes, and initial weights of the user's script."""
    rng = np.random.default_rng(2026)

    def ids(sizes):
        return rng.permutation(np.repeat(np.arange(len(sizes)), sizes))

    def embeddings(n, d):
        return rng.normal(size=(n, d)) * rng.uniform(0.3, 1.2, size=(n, 1))

    arrays = {
        "small/ids": ids((7, 1, 5, 4, 3, 4)),
        "small/z": embeddings(24, 8),
        "large/ids": ids((50, 46)),
        "large/z": embeddings(96, 12),
        "ties/ids": ids((6, 5, 5)),
        "ties/z": rng.integers(-1, 2, size=(16, 3)),
        "one class/ids": np.full(5, 3),
        "one class/z": embeddings(5, 4),
        "no positives/ids": np.arange(4),
        "no positives/z": embeddings(4, 4),
        "similarities": rng.normal(size=(24, 24)) * 2,
        "labels": rng.uniform(size=(24, 5)) < 0.4,
        "together": rng.integers(0, 2, size=24),
        "pair distances": rng.uniform(0, 2, size=24),
        "script/ids": rng.integers(0, 8, size=STEPS * BATCH),
        "script/x": rng.normal(size=(STEPS * BATCH, 10)),
        "script/kernel 1": 0.4 * rng.normal(size=(10, 16)),
        "script/kernel 2": 0.4 * rng.normal(size=(16, 8)),
    }
    # Later additions use another generator, so that the first arrays do not change.
    rng = np.random.default_rng(2027)
    arrays |= {"square/ids": np.arange(5).repeat(5), "square/z": embeddings(25, 8)}
    for name, classes, dimensions in (("small", 6, 8), ("large", 2, 12)):
        for centers in (1, 3):
            arrays[f"{name}/proxies/{centers}"] = embeddings(classes * centers, dimensions)
        arrays[f"{name}/boundaries"] = np.linspace(0.9, 1.3, classes)
    arrays["labels"][:, 0] |= ~arrays["labels"].any(axis=1)
    arrays["script/x"] += 2 * rng.normal(size=(8, 10))[arrays["script/ids"]]
    return {
        f"inputs/{name}": a.astype("float32" if a.dtype == float or name == "ties/z" else "int32")
        for name, a in arrays.items()
    }


def distance_function(metric, matmul, cumsum):
    """Return `metric` if the peer knows this name, else the function for it."""
    functions = {
        "inner": lambda z: matmul(z, z),
        "lopsided": lambda z: matmul(z, cumsum(z)),
    }
    return functions.get(metric, metric)


def tensorflow_addons(inputs):
    """Compute every metric-learning loss of tensorflow-addons, and 20 steps of training."""
    import tensorflow as tf
    import tensorflow_addons as tfa

    results = {}

    def put(name, function, labels, predictions, **arguments):
        predictions = tf.constant(predictions)
        with tf.GradientTape() as tape:
            tape.watch(predictions)
            value = function(tf.constant(labels), predictions, **arguments)
        results[f"{name}/value"] = value.numpy()
        results[f"{name}/gradient"] = tape.gradient(value, predictions).numpy()

    for batch in ADDONS_BATCHES:
        for case, (function, arguments) in ADDONS_CASES.items():
            if "distance_metric" in arguments:
                metric = distance_function(
                    arguments["distance_metric"],
                    lambda a, b: tf.matmul(a, b, transpose_b=True),
                    lambda a: tf.cumsum(a, axis=1),
                )
                arguments = {**arguments, "distance_metric": metric}
            ids, z = inputs[f"inputs/{batch}/ids"], inputs[f"inputs/{batch}/z"]
            put(f"{batch}/{case}", getattr(tfa.losses, function), ids, z, **arguments)
    together, distances = inputs["inputs/together"], inputs["inputs/pair distances"]
    put("contrastive", tfa.losses.contrastive_loss, together, distances)
    put("contrastive, margin 0.4", tfa.losses.contrastive_loss, together, distances, margin=0.4)
    similarities = inputs["inputs/similarities"]
    put("npairs", tfa.losses.npairs_loss, inputs["inputs/small/ids"], similarities)
    put("multilabel", tfa.losses.npairs_multilabel_loss, inputs["inputs/labels"], similarities)
    results["script/losses"] = _script(inputs, tf.keras, tfa.losses.TripletSemiHardLoss())
    return results


def _script(inputs, keras, loss):
    layers = [keras.layers.Dense(16, "relu"), keras.layers.Dense(8)]
    model = keras.Sequential([keras.Input((10,)), *layers, keras.layers.UnitNormalization()])
    for number, layer in enumerate(layers, 1):
        kernel = inputs[f"inputs/script/kernel {number}"]
        layer.set_weights([kernel, np.zeros(kernel.shape[1])])
    model.compile(keras.optimizers.SGD(RATE, momentum=0.9), loss)
    losses = []
    for step in range(STEPS):
        rows = slice(step * BATCH, (step + 1) * BATCH)
        x, ids = inputs["inputs/script/x"][rows], inputs["inputs/script/ids"][rows]
        losses.append(float(model.train_on_batch(x, ids)))
        model.reset_metrics()  # Keras 3 would return the mean over steps
    return np.array(losses)


def pytorch_metric_learning(inputs):
    """Compute the losses of pytorch-metric-learning that ours must equal."""
    import torch
    from pytorch_metric_learning import distances, losses, miners, reducers

    cosine = distances.CosineSimilarity()
    squares = distances.LpDistance(normalize_embeddings=False, p=2, power=2)
    sums, means = reducers.SumReducer(), reducers.MeanReducer()

    def contrastive(margin, positive_margin, power, normalize):
        distance = distances.LpDistance(normalize_embeddings=normalize, p=2, power=power)
        return losses.ContrastiveLoss(positive_margin, margin, distance=distance, reducer=sums)

    theirs = {
        "contrastive tightness": lambda: losses.ContrastiveLoss(
            0, 0, distance=squares, reducer=sums
        ),
        "contrastive, two margins": contrastive,
        "contrastive, below 0": contrastive,
        "snca": lambda temperature: losses.NCALoss(1 / temperature, distance=cosine),
        "multi_similarity": losses.MultiSimilarityLoss,
        "multi_similarity, other": losses.MultiSimilarityLoss,
        "fastap": losses.FastAPLoss,
        "ice": lambda scale: losses.NTXentLoss(temperature=1 / scale, reducer=sums),
        "triplet": lambda margin: losses.TripletMarginLoss(
            margin, distance=distances.LpDistance(power=1), reducer=means
        ),
        "supcon": losses.SupConLoss,
        "nt_xent": losses.NTXentLoss,
        "circle": lambda margin, scale: losses.CircleLoss(margin, scale),
        "margin": lambda margin, beta, sampling: losses.MarginLoss(
            margin, beta=beta, triplets_per_anchor=sampling
        ),
    }
    results = {}
    cutoffs = LEARNING_CASES["distance weights"]
    miner = miners.DistanceWeightedMiner(cutoffs["nearest"], cutoffs["farthest"])
    for batch in LEARNING_BATCHES:
        ids, z = inputs[f"inputs/{batch}/ids"], inputs[f"inputs/{batch}/z"]
        for case, make in theirs.items():
            divide = len(z) if case in SUMMED else 1
            results |= _called(f"{batch}/{case}", make(**LEARNING_CASES[case]), ids, z, divide)
        weights = _miner_weights(miner, torch.tensor(z), torch.tensor(ids))
        results[f"{batch}/distance weights/value"] = weights
        results |= _with_weights(batch, inputs, losses)
    ids, z = (inputs[f"inputs/{MEMORY['batch']}/{name}"] for name in ("ids", "z"))
    for case in MEMORY_CASES:
        loss = theirs[case](**LEARNING_CASES[case])
        memory = losses.CrossBatchMemory(loss, z.shape[1], MEMORY["memory_size"])
        steps = zip(np.split(ids, MEMORY["steps"]), np.split(z, MEMORY["steps"]))
        for number, (some_ids, some) in enumerate(steps):
            results |= _called(f"memory/{case}/{number}", memory, some_ids, some)
    ids, z = inputs["inputs/square/ids"], inputs["inputs/square/z"]
    loss = losses.SmoothAPLoss(SMOOTH_AP["temperature"])
    return results | _called("square/smooth_ap", loss, ids, z)


def _called(name, loss, ids, z, divide=1, weight=None):
    """Call a loss of the peer on a batch, with an extra weight if set."""
    import torch

    z = torch.tensor(z, requires_grad=True)
    value = loss(z, torch.tensor(ids).long()) / divide
    value.backward()
    called = {f"{name}/value": value.detach().numpy(), f"{name}/gradient": z.grad.numpy()}
    if weight is not None:
        called[f"{name}/of weights"] = weight.grad.numpy()
    return called


def _with_weights(batch, inputs, losses):
    """Compute the losses that own proxies or boundaries."""
    import torch

    ids, z = inputs[f"inputs/{batch}/ids"], inputs[f"inputs/{batch}/z"]
    classes = len(inputs[f"inputs/{batch}/boundaries"])
    sizes = {"num_classes": classes, "embedding_size": z.shape[1]}
    theirs = {
        "norm_softmax": losses.NormalizedSoftmaxLoss,
        "cosface": losses.CosFaceLoss,
        "arcface": losses.ArcFaceLoss,
        "subcenter_arcface": losses.SubCenterArcFaceLoss,
        "soft_triple": losses.SoftTripleLoss,
        "proxy_nca": losses.ProxyNCALoss,
        "proxy_anchor": losses.ProxyAnchorLoss,
    }
    renamed = {
        "soft_triple": lambda scale, margin: {"la": scale, "margin": margin},
        "proxy_anchor": lambda scale, margin: {"alpha": scale, "margin": margin},
        "proxy_nca": lambda temperature: {"softmax_scale": 1 / temperature},
    }
    results = {}
    for case, (arguments, centers, _) in PROXY_CASES.items():
        name = case.split(",")[0]
        given = renamed.get(name, dict)(**arguments)
        if "arcface" in name:
            given["margin"] = np.degrees(given["margin"])
        if centers > 1:
            given["centers_per_class" if name == "soft_triple" else "sub_centers"] = centers
        loss = theirs[name](**sizes, **given)
        (weight,) = loss.parameters()
        proxies = torch.tensor(inputs[f"inputs/{batch}/proxies/{centers}"])
        turned = weight.shape != proxies.shape
        weight.data = proxies.T.clone() if turned else proxies.clone()
        results |= _called(f"{batch}/{case}", loss, ids, z, weight=weight)
        if turned:
            results[f"{batch}/{case}/of weights"] = results[f"{batch}/{case}/of weights"].T

    loss = losses.MarginLoss(
        BOUNDARIES["margin"], nu=BOUNDARIES["nu"], triplets_per_anchor="all",
        learn_beta=True, num_classes=classes,
    )  # fmt: skip
    loss.beta.data = torch.tensor(inputs[f"inputs/{batch}/boundaries"])
    return results | _called(f"{batch}/boundaries", loss, ids, z, weight=loss.beta)


def _miner_weights(miner, embeddings, ids):
    """Return the weights that the miner passes to its drawing function."""
    from unittest import mock

    from pytorch_metric_learning.utils import loss_and_miner_utils

    with mock.patch.object(
        loss_and_miner_utils,
        "get_random_triplet_indices",
        wraps=loss_and_miner_utils.get_random_triplet_indices,
    ) as draw:
        miner(embeddings, ids)
    return draw.call_args.kwargs["weights"].numpy()


def main(arguments):
    """Add one peer's results to the file."""
    peers = {
        "tensorflow-addons": tensorflow_addons,
        "pytorch-metric-learning": pytorch_metric_learning,
    }
    if len(arguments) != 2 or arguments[1] not in peers:
        sys.exit(f"peer must be {' or '.join(peers)}, but got {' '.join(arguments[1:])}.")
    peer = arguments[1]
    arrays = draw_inputs()
    if peer != "tensorflow-addons":
        arrays |= dict(np.load(FILE))
        arrays = {name: a for name, a in arrays.items() if not name.startswith(f"{peer}/")}
    for name, result in peers[peer](arrays).items():
        arrays[f"{peer}/{name}"] = result
    np.savez_compressed(FILE, **arrays)
    print(f"{FILE}: {len(arrays)} arrays, {FILE.stat().st_size} bytes")


if __name__ == "__main__":
    main(sys.argv)
