"""A lower bound on the information of embeddings about their classes, by a linear classifier."""

from __future__ import annotations

import logging
from typing import NamedTuple

import numpy as np

from keras_dml._common.extras import needing
from keras_dml._common.types import BoolArray, Float64Array, Int64Array
from keras_dml.metrics.pairwise_information import Estimate

_LOGGER = logging.getLogger("keras_dml")
# From the strongest to the weakest, so that each fit starts near the next one.
WEIGHT_DECAYS = tuple(10.0**power for power in range(1, -5, -1))
MOST_CLASSES = 1000


class Probe(NamedTuple):
    """A fitted linear classifier: `log_softmax(((z - mean) / scale) @ weights + bias)`.

    Attributes:
        weights: `[d, K]`.
        bias: `[K]`.
        mean, scale: Of the rows that fitted it, `[d]`.
        converged: Whether the largest entry of the gradient is below 1e-5.
    """

    weights: Float64Array
    bias: Float64Array
    mean: Float64Array
    scale: Float64Array
    converged: bool

    def log_probabilities(self, rows: Float64Array, codes: Int64Array) -> Float64Array:
        """Return log q(class | row) of the class of each row, `[n]`."""
        logits = (rows - self.mean) / self.scale @ self.weights + self.bias
        return _log_softmax(logits)[np.arange(len(codes)), codes]


def fit_probe(
    rows: Float64Array,
    codes: Int64Array,
    weight_decay: float,
    start: Probe | None = None,
    standardize: bool = True,
    most: int = 500,
) -> Probe:
    """Fit a softmax classifier with L-BFGS on all rows.

    The loss is the mean cross-entropy + (w/2)‖θ‖², without decay of the bias. It is convex, so the
    probabilities do not depend on the start.

    Args:
        rows: `[n, d]`.
        codes: Class numbers 0 to K − 1, `[n]`, with each class present.
        weight_decay: w, at least 0. With 0, θ of separable classes grows until the last iteration.
        start: A fit on the same rows to start from. The default is 0.
        standardize: Whether to give each column the mean 0 and the deviation 1.
        most: Largest number of iterations.
    """
    with needing("run", "information_probe"):
        from scipy.optimize import minimize

    mean = rows.mean(axis=0) if standardize else np.zeros(rows.shape[1])
    scale = rows.std(axis=0) if standardize else np.ones(rows.shape[1])
    scale = np.where(scale > 0, scale, 1.0)
    x, count, classes = (rows - mean) / scale, len(rows), int(codes.max()) + 1
    shape = x.shape[1] + 1, classes

    def loss(flat: Float64Array) -> tuple[float, Float64Array]:
        theta = flat.reshape(shape)
        log_p = _log_softmax(x @ theta[:-1] + theta[-1])
        value = -log_p[np.arange(count), codes].mean() + weight_decay / 2 * (theta[:-1] ** 2).sum()
        slope = np.exp(log_p)
        slope[np.arange(count), codes] -= 1
        slope /= count
        gradient = np.vstack([x.T @ slope + weight_decay * theta[:-1], slope.sum(axis=0)])
        return float(value), gradient.ravel()

    first = np.zeros(shape) if start is None else np.vstack([start.weights, start.bias])
    limits = {"maxiter": most, "maxfun": 4 * most, "gtol": 1e-5, "ftol": 0.0}
    found = minimize(loss, first.ravel(), jac=True, method="L-BFGS-B", options=limits)
    theta = found.x.reshape(shape)
    converged = bool(np.abs(found.jac).max() < 1e-5)
    return Probe(theta[:-1], theta[-1], mean, scale, converged)


def information_probe(rows: Float64Array, codes: Int64Array, seed: int) -> Estimate:
    """Estimate H(Y) − E[−log q(Y|Z)], where q is fitted on one half of each class.

    Each half is scored by the classifier of the other half. Two halves of the fitting half choose
    the weight decay.

    Args:
        rows: `[n, d]`.
        codes: Class number of each row, `[n]`.
        seed: Seed of the halves, and of the choice of 1,000 classes if there are more.

    Returns:
        The estimate, with the rows of classes with four rows. NaN if fewer than two classes have
        four rows.
    """
    sizes = np.bincount(codes)
    chosen = np.flatnonzero(sizes >= 4)
    if len(chosen) > MOST_CLASSES:
        chosen = np.sort(np.random.default_rng([seed, 0]).permutation(chosen)[:MOST_CLASSES])
        _LOGGER.info("information_probe: %d of %d classes", MOST_CLASSES, len(sizes))
    used = np.flatnonzero(np.isin(codes, chosen))
    if len(chosen) < 2:
        return Estimate(float("nan"), np.zeros(len(used)), codes[used])
    rows, codes = rows[used], np.searchsorted(chosen, codes[used])
    second = halves(codes, np.random.default_rng([seed, 1]))
    values = np.empty(len(used))
    unfinished = 0
    for scored in (second, ~second):
        probe = _chosen_probe(rows[~scored], codes[~scored], seed)
        shares = np.bincount(codes[scored]) / scored.sum()
        likelihoods = probe.log_probabilities(rows[scored], codes[scored])
        values[scored] = likelihoods - np.log(shares[codes[scored]])
        unfinished += not probe.converged
    if unfinished:
        _LOGGER.warning("information_probe: %d of 2 probes stopped at 500 iterations", unfinished)
    value = np.mean([values[second].mean(), values[~second].mean()])
    return Estimate.of(value, values, codes)


def halves(codes: Int64Array, rng: np.random.Generator) -> BoolArray:
    """Return which rows are in the second half of their class, `[n]`."""
    order = rng.permutation(len(codes))
    order = order[np.argsort(codes[order], kind="stable")]
    sizes = np.bincount(codes)
    places = np.arange(len(codes)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    second = np.empty(len(codes), bool)
    second[order] = places >= np.repeat((sizes + 1) // 2, sizes)
    return second


def _chosen_probe(rows: Float64Array, codes: Int64Array, seed: int) -> Probe:
    """Return the probe whose weight decay is best between two halves of the rows."""
    second = halves(codes, np.random.default_rng([seed, 2]))
    scores = np.zeros(len(WEIGHT_DECAYS))
    for scored in (second, ~second):
        probe = None
        for number, weight_decay in enumerate(WEIGHT_DECAYS):
            probe = fit_probe(rows[~scored], codes[~scored], weight_decay, probe)
            scores[number] += probe.log_probabilities(rows[scored], codes[scored]).mean()
    best = int(scores.argmax())
    probe = fit_probe(rows, codes, WEIGHT_DECAYS[0])
    for weight_decay in WEIGHT_DECAYS[1 : best + 1]:
        probe = fit_probe(rows, codes, weight_decay, probe)
    return probe


def _log_softmax(logits: Float64Array) -> Float64Array:
    logits = logits - logits.max(axis=1, keepdims=True)
    return logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))
