"""Write tests/support/peers/tensorflow_similarity.json: results of TensorFlow Similarity 0.17.1.

The package needs an old TensorFlow, so the tests read stored results. To rebuild the file, run
these commands from the root of the project:

    python3.11 -m venv /tmp/similarity
    /tmp/similarity/bin/pip install -r tests/support/peers/requirements-tensorflow-similarity.txt
    /tmp/similarity/bin/pip install --no-deps tensorflow_similarity==0.17.1 nmslib==2.1.2
    /tmp/similarity/bin/python tests/support/peers/tensorflow_similarity_goldens.py

Embeddings have unit length, so that versions 0.17 and 0.18 agree. The model is the identity.
"""

import json
import pathlib

import numpy as np

FILE = pathlib.Path(__file__).with_name("tensorflow_similarity.json")


def on_circle(degrees):
    """Return unit vectors in the plane, float32."""
    angles = np.radians(degrees)
    return np.stack([np.cos(angles), np.sin(angles)], axis=1).astype("float32")


A = np.array([[3, 4, 0], [4, 0, 3], [0, 3, 4], [0, 5, 0]], "float32") / 5
BATCHES = {
    "A": (np.array([0, 0, 1, 1]), A),
    "B": (np.array([0, 0, 0, 1, 1, 2]), on_circle([0, 20, 50, 90, 110, 200])),
    "one class": (np.array([0, 0, 0, 0]), A),
}
GALLERY = (on_circle([0, 15, 40, 70, 95, 130]), np.array([0, 0, 1, 1, 2, 2]))
QUERIES = (on_circle([4, 31, 47, 84, 112, 160]), np.array([0, 0, 1, 1, 2, 0]))

LOSSES = {
    "multi-similarity": ("MultiSimilarityLoss", {}),
    "multi-similarity, sql2": ("MultiSimilarityLoss", {"distance": "sql2", "epsilon": 0.3}),
    "triplet": ("TripletLoss", {}),
    "triplet, margin": ("TripletLoss", {"margin": 1.0}),
    "triplet, hard l2": (
        "TripletLoss", {"distance": "l2", "negative_mining_strategy": "hard", "margin": 0.5},
    ),
    "triplet, easy": (
        "TripletLoss",
        {"positive_mining_strategy": "easy", "negative_mining_strategy": "easy", "margin": 1.0},
    ),
    "pn": ("PNLoss", {}),
    "pn, margin": ("PNLoss", {"margin": 1.0}),
    "circle": ("CircleLoss", {}),
    "soft": ("SoftNearestNeighborLoss", {}),
    "soft, l1": ("SoftNearestNeighborLoss", {"distance": "l1", "temperature": 0.5}),
}  # fmt: skip
"""Case: (name of the class, its arguments)."""

DISTANCES = ("cosine", "l2", "sql2", "l1", "ip", "snr")
METRICS = ("avg_pos", "avg_neg", "max_pos", "max_neg", "min_pos", "min_neg", "sum_pos", "sum_neg",
           "dist_gap")  # fmt: skip

CALIBRATIONS = {
    "f1": {"extra_metrics": ["precision", "recall", "binary_accuracy", "npv", "fpr"],
           "thresholds_targets": {"half": 0.5, "never": 2.0}},
    "fpr": {"calibration_metric": "fpr", "thresholds_targets": {"half": 0.5}},
    "vote": {"k": 3, "matcher": "match_majority_vote"},
    "precision": {"calibration_metric": "precision", "extra_metrics": ["f1"],
                  "thresholds_targets": {"most": 0.7}},
}  # fmt: skip

R = {0: 2, 1: 2, 2: 2}
RETRIEVAL = {
    "recall@1": ("RecallAtK", {"k": 1}),
    "recall@2": ("RecallAtK", {"k": 2}),
    "recall@2, macro": ("RecallAtK", {"k": 2, "average": "macro"}),
    "precision@2": ("PrecisionAtK", {"k": 2}),
    "precision@3, r": ("PrecisionAtK", {"k": 3, "r": R}),
    "precision, clipped": ("PrecisionAtK", {"k": 3, "r": R, "clip_at_r": True}),
    "map@3": ("MapAtK", {"k": 3, "r": R}),
    "map, clipped": ("MapAtK", {"k": 3, "r": R, "clip_at_r": True}),
    "ndcg@3": ("BNDCG", {"k": 3}),
    "ndcg@3, near": ("BNDCG", {"k": 3, "distance_threshold": 0.05}),
}
OWN = {
    name: (kind, {"k": 2, "drop_closest_lookup": True, **arguments})
    for name, (kind, arguments) in {
        "recall": ("RecallAtK", {}), "precision": ("PrecisionAtK", {"r": R}),
        "map": ("MapAtK", {"r": R}), "ndcg": ("BNDCG", {}),
    }.items()
}  # fmt: skip
"""Metrics of the gallery as its own queries."""


def identity_model(package, keras):
    """Return a compiled model that returns its inputs, with the gallery in its index."""
    inputs = keras.layers.Input((2,))
    model = package.models.SimilarityModel(inputs, keras.layers.Activation("linear")(inputs))
    model.compile("adam", loss=package.losses.TripletLoss())
    model.index(*GALLERY, verbose=0)
    return model


def plain(value):
    """Return a result without NumPy, for JSON."""
    if isinstance(value, dict):
        return {str(key): plain(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [plain(each) for each in value]
    return value.tolist() if hasattr(value, "tolist") else value


def results(package, keras):
    """Return the results of all cases, from the original or from our package."""
    queries, labels = QUERIES
    model = identity_model(package, keras)
    retrieval = package.retrieval_metrics
    found = {"lookup": [[(one.rank, one.label, one.distance) for one in row]
                        for row in model.lookup(queries, k=3, verbose=0)]}  # fmt: skip
    for name, arguments in CALIBRATIONS.items():
        result = model.calibrate(queries, labels, verbose=0, **arguments)
        matching = {key: arguments[key] for key in ("k", "matcher") if key in arguments}
        found[f"calibrate, {name}"] = {
            "cutpoints": result.cutpoints,
            "thresholds": result.thresholds,
            "match": dict(model.match(queries, "all", **matching)),
        }
    model.calibrate(queries, labels, verbose=0)
    found["classification"] = {
        key: np.asarray(value).tolist()
        for key, value in model.evaluate_classification(queries, labels, verbose=0)[
            "optimal"
        ].items()
    }
    for case, asked in (("queries", RETRIEVAL), ("gallery", OWN)):
        examples = QUERIES if case == "queries" else GALLERY
        for name, (kind, arguments) in asked.items():
            metric = getattr(retrieval, kind)(**arguments)
            (value,) = model.evaluate_retrieval(*examples, [metric], verbose=0).values()
            found[f"{case}: {name}"] = float(value)
    for name in METRICS:
        for batch, (y, z) in BATCHES.items():
            metric = getattr(package.training_metrics, name)("cosine")
            metric.update_state(y, z, None)
            found[f"{name}, {batch}"] = float(metric.result())
    schedule = package.schedules.WarmupCosineDecay(0.1, 100, 10)
    found["schedule"] = [float(schedule(step)) for step in (0, 1, 9, 10, 55, 100, 120)]
    pooling = package.layers.GeneralizedMeanPooling2D
    images = np.arange(8, dtype="float32").reshape(1, 2, 2, 2) - 3
    found["pooling"] = {str(p): np.asarray(pooling(p=p)(images)).tolist()
                        for p in (3.0, 1.0, -2.0, 0.0)}  # fmt: skip
    for name in DISTANCES:
        distance = package.distances.distance_canonicalizer(name)
        found[f"distance {name}"] = np.asarray(distance(A, A[::-1].copy() + 0.5)).tolist()
    return found


def main():
    """Run the original, and write the file."""
    import tensorflow as tf
    import tensorflow_similarity as original

    found = results(original, tf.keras)
    for name, (kind, arguments) in LOSSES.items():
        for batch, (y, z) in BATCHES.items():
            variable = tf.Variable(z)
            with tf.GradientTape() as tape:
                value = getattr(original.losses, kind)(**arguments)(y, variable)
            gradient = tape.gradient(value, variable)
            found[f"{name}, {batch}"] = [float(value), gradient.numpy().tolist()]
    for warmup in (0, 1):
        loss = original.losses.XBM(original.losses.MultiSimilarityLoss(), 8, warmup)
        y, z = BATCHES["A"]
        steps = (z, z[::-1].copy(), z)
        found[f"memory, warmup {warmup}"] = [float(loss(y, rows)) for rows in steps]
    FILE.write_text(json.dumps(plain(found), indent=1) + "\n", "utf-8")


if __name__ == "__main__":
    main()
