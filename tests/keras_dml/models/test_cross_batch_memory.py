"""The memory of earlier batches: its rows, its term of the loss, saving, and errors."""

import keras
import numpy as np
import pytest
from batches import batch, functional
from loss_cases import CASES, each
from peers.goldens import FILE, LEARNING_CASES, MEMORY, MEMORY_CASES

from keras_dml import layers, losses, models
from keras_dml.metrics import LossPart

# The six points of the worked examples, and a second batch.
Z = np.array(
    [(1, 0, 0.5), (0.5, 1, 0), (0, 1, 1), (-1, 0.5, 1), (0.5, -1, 1), (1, 1, -0.5)], "float32"
)
IDS = np.array([0, 0, 1, 1, 2, 0])
SECOND, SECOND_IDS = Z[::-1] + np.float32(0.25), IDS[::-1].copy()

# Without losses that have variables.
TAKERS = [
    case
    for case in CASES
    if losses.LOSSES[case.name].takes_memory
    and not case.arguments.get("boundaries")
    and case.name != "ice"
]


def untouched(dimensions=3, **dense):
    """A model whose embeddings equal its inputs, as long as the learning rate is 0."""
    identity = {"use_bias": False, "kernel_initializer": "identity"}
    return functional((dimensions,), keras.layers.Dense(dimensions, **identity, **dense))


def remembering(model, loss, size=8, rate=0.0, parts=False, **arguments):
    arguments = {"start_step": 0, **arguments}
    memory = models.CrossBatchMemory(model, size, **arguments)
    both = [LossPart(loss, "tightness"), LossPart(loss, "contrastive")] if parts else None
    # For so few steps, eager mode is faster than a graph; JAX needs the graph.
    eager = keras.backend.backend() == "tensorflow"
    memory.compile(keras.optimizers.SGD(rate), loss, metrics=both, run_eagerly=eager)
    return memory


def step(model, x, ids, **more):
    """Train one step and return only its logs."""
    model.reset_metrics()
    return model.train_on_batch(x, ids, return_dict=True, **more)


def stored(model):
    """Return the memory's rows, class ids, number of rows ever written, and steps."""
    state = model.memory, model.memory_class_ids, model.written, model.step
    return [keras.ops.convert_to_numpy(variable.value) for variable in state]


@each(TAKERS, {"snca", "supcon"})
def test_the_first_memory_term_is_the_loss_of_the_batch(case):
    """Free slots hold zeros, which are not candidates; the parts equal the batch's parts."""
    ids, z = batch()
    loss = losses.get(case.name, **case.arguments)
    model = remembering(
        untouched(6), loss, 16, parts=True, weight=2.0, batch_term=False, name="memory"
    )
    found = step(model, z.astype("float32"), ids)
    tightness, contrastive = case.oracle(ids, z, **case.arguments)
    expected = {
        "tightness": 2 * np.mean(tightness),
        "contrastive": 2 * np.mean(contrastive),
        "loss": 2 * np.mean(tightness + contrastive),
    }
    assert found == pytest.approx(expected, rel=1e-3, abs=2e-4)


@pytest.mark.parametrize("case", MEMORY_CASES)
def test_values_and_gradients_match_the_peer(case):
    """pytorch-metric-learning's memory replaces the batch as the set of candidates.

    The rows of the last step replace the oldest rows.
    """
    goldens = np.load(FILE)
    ids, z = (goldens[f"inputs/{MEMORY['batch']}/{name}"] for name in ("ids", "z"))
    arguments = LEARNING_CASES[case] | ({"average": "triplets"} if case == "triplet" else {})
    loss = losses.get(case.split(",")[0], **arguments)
    model = remembering(
        untouched(z.shape[1]), loss, MEMORY["memory_size"], rate=1.0, batch_term=False
    )
    (kernel,) = model.trainable_variables
    parts = zip(np.split(ids, MEMORY["steps"]), np.split(z, MEMORY["steps"]))
    for number, (some_ids, some) in enumerate(parts):
        theirs = {
            name: goldens[f"pytorch-metric-learning/memory/{case}/{number}/{name}"]
            for name in ("value", "gradient")
        }
        assert step(model, some, some_ids)["loss"] == pytest.approx(theirs["value"], rel=1e-4)
        expected = some.T @ theirs["gradient"]
        moved = np.eye(z.shape[1]) - np.asarray(kernel)
        np.testing.assert_allclose(moved, expected, atol=1e-3 * np.abs(expected).max())
        kernel.assign(np.eye(z.shape[1]))


@pytest.mark.any_backend
def test_nothing_is_written_before_start_step():
    loss = losses.SupConLoss()
    model = remembering(untouched(), loss, start_step=2, parts=True)
    alone = float(loss(IDS, Z))
    for _ in range(2):
        found = step(model, Z, IDS)
        assert found["loss"] == pytest.approx(alone, rel=1e-5)
        assert found["tightness"] + found["contrastive"] == pytest.approx(alone, rel=1e-5)
        assert stored(model)[2] == 0
    assert step(model, Z, IDS)["loss"] == pytest.approx(2 * alone, rel=1e-5)


@pytest.mark.any_backend
def test_evaluation_neither_writes_nor_reads():
    loss = losses.SupConLoss()
    model = remembering(untouched(), loss, parts=True)
    step(model, Z, IDS)
    before = stored(model)
    found = model.evaluate(SECOND, SECOND_IDS, verbose=0, return_dict=True)
    alone = float(loss(SECOND_IDS, SECOND))
    assert found["loss"] == pytest.approx(alone, rel=1e-5)
    assert found["tightness"] + found["contrastive"] == pytest.approx(alone, rel=1e-4)
    for old, new in zip(before, stored(model)):
        np.testing.assert_array_equal(old, new)
    np.testing.assert_allclose(model.predict(SECOND, verbose=0), SECOND, rtol=1e-6)


def test_sample_weights_weigh_anchors():
    loss = losses.ContrastiveLoss()
    model = remembering(untouched(), loss, 6)
    weights = np.array([2.0, 0, 1, 1, 0.5, 3], "float32")
    found = step(model, Z, IDS, sample_weight=weights)["loss"]
    assert found == pytest.approx(2 * float(loss(IDS, Z, sample_weight=weights)), rel=1e-5)
    rows, *_ = stored(model)
    np.testing.assert_array_equal(rows, Z)


def test_prefixes_are_compared_with_prefixes_in_the_memory():
    loss = losses.MatryoshkaLoss(losses.SupConLoss(), (2, 3))
    model = remembering(untouched(), loss, parts=True)
    found = step(model, Z, IDS)
    assert found["loss"] == pytest.approx(2 * 3.541510, rel=1e-4)
    assert found["tightness"] == pytest.approx(2 * -12.306570, rel=1e-4)


def test_learned_boundaries_come_from_the_anchors():
    model = functional((3,), untouched().call, layers.Boundary())
    loss = losses.MarginLoss(boundaries=1, sampling="all")
    memory = remembering(model, loss, 6)
    assert memory.memory.shape == (6, 4)
    alone = float(losses.MarginLoss(sampling="all")(IDS, Z))
    assert step(memory, Z, IDS)["loss"] == pytest.approx(2 * alone, rel=1e-5)


def test_regularizers_count_once_without_the_batch_term():
    model = untouched(kernel_regularizer=keras.regularizers.L2(1))
    loss = losses.ContrastiveLoss()
    alone = float(loss(IDS, Z))
    for batch_term in (True, False):
        found = step(remembering(model, loss, batch_term=batch_term), Z, IDS)["loss"]
        assert found == pytest.approx((1 + batch_term) * alone + 3, rel=1e-5)


def test_class_ids_beyond_32_bits_stay_distinct():
    found = []
    # The first two are equal in float32, and the first and the last in 32 bits.
    for classes in ([0, 1, 2], [2**40, 2**40 + 1, 2**40 + 2**33]):
        model = remembering(untouched(), losses.SupConLoss())
        step(model, Z, np.array(classes)[IDS])
        found.append(step(model, SECOND, np.array(classes)[SECOND_IDS])["loss"])
    assert found[0] == pytest.approx(found[1])


@pytest.mark.slow
@pytest.mark.any_backend
@pytest.mark.parametrize(
    "how",
    [{"jit_compile": False}, {"steps_per_execution": 3}],
    ids=["plain", "several steps, XLA"],
)
def test_it_trains_in_fit_and_recompiling_separates_the_metrics(how):
    if "steps_per_execution" in how and keras.backend.backend() == "torch":
        pytest.skip("Keras takes one step an execution on PyTorch")
    keras.utils.set_random_seed(3)
    net = functional((6,), keras.layers.Dense(8, "tanh"), keras.layers.Dense(4))
    model = models.CrossBatchMemory(net, 64, start_step=1)
    loss = losses.ContrastiveLoss(normalize=True)
    for _ in range(2):
        both = [LossPart(loss, "tightness"), LossPart(loss, "contrastive")]
        model.compile(keras.optimizers.Adam(0.01), loss, metrics=both, **how)
    ids, x = batch(seed=5, sizes=(16, 12, 14, 22), dimensions=6)
    history = model.fit(x, ids, batch_size=16, epochs=6, verbose=0).history
    assert history["loss"][-1] < history["loss"][1]
    assert set(history) == {"loss", "tightness", "contrastive"}
    total = np.add(history["tightness"], history["contrastive"])
    np.testing.assert_allclose(history["loss"], total, rtol=1e-4)
    assert model.count_params() == model.model.count_params()


@pytest.mark.parametrize("loss", [
    losses.QuadrupletLoss(), losses.LiftedStructureLoss(), losses.NPairsLoss(), losses.CenterLoss(),
    losses.ArcFaceLoss(), losses.RankMILoss(), losses.MatryoshkaLoss(losses.NPairsLoss(), (3,)),
    losses.InstanceCrossEntropyLoss(), "supcon", None,
], ids=lambda loss: getattr(loss, "name", None) or repr(loss))  # fmt: skip
def test_a_loss_without_fixed_candidates_is_refused(loss):
    model = models.CrossBatchMemory(untouched(), 8)
    with pytest.raises(TypeError, match="must"):
        model.compile("sgd", loss)


def test_other_user_errors():
    with pytest.raises(ValueError, match=r"model must be a built keras.Model with embeddings"):
        models.CrossBatchMemory(keras.Sequential([keras.layers.Dense(3)]), 8)
    model = models.CrossBatchMemory(untouched(), 4, start_step=0)
    with pytest.raises(ValueError, match="loss_weights must be left out of compile"):
        model.compile("sgd", losses.SNCALoss(), loss_weights=[1.0])
    model.compile("sgd", losses.SNCALoss(), run_eagerly=keras.backend.backend() == "tensorflow")
    with pytest.raises(ValueError, match="memory_size must be at least 6.* but got 4"):
        model.train_on_batch(Z, IDS)
    with pytest.raises(ValueError, match=r"y_true must be class ids.* but got None"):
        model.train_on_batch(Z)


@pytest.mark.slow
def test_a_batch_of_one_and_fractional_class_ids():
    model = remembering(untouched(), losses.ContrastiveLoss())
    assert step(model, Z[:1], IDS[:1])["loss"] == 0.0
    assert step(model, Z, IDS.astype("float32"))["loss"] > 0
    with pytest.raises(ValueError, match="y_true must be class ids.* but got 0.5 in row 0"):
        step(model, Z, IDS + 0.5)
    model = models.CrossBatchMemory(untouched(), 8, start_step=0)
    model.compile("sgd", losses.ContrastiveLoss())  # graph mode, which cannot raise
    assert np.isnan(step(model, Z, IDS + 0.5)["loss"])
