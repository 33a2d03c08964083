"""Training on many devices equals training on one device with the same global batches."""

import json

import device_programs
import distributed_training
import local_workers
import numpy as np
import pytest
import tensorflow as tf
import tiers
from once import once

from keras_dml._backend.replicas import gather_candidates, place_among_replicas

# The gate runs the tests that need processes with several devices.
pytestmark = pytest.mark.slow

QUICK = [*distributed_training.quick_cases(), "rankmi_model"]
LONGER = [*distributed_training.more_cases(), "proxies", "memory", "chunks", "dropout"]
LONGER += ["dual", "dual_memory", "tags", "rankmi_clipped"]
# The gate runs the quick cases; the thorough checks run all.
MORE = [pytest.param(case, marks=pytest.mark.thorough) for case in LONGER]
LOSSES = [case for case, (_, _, recipe) in distributed_training.CASES.items() if recipe == "plain"]
# The gate compiles these by XLA, and the thorough checks the others.
IN_THE_GATE = [distributed_training.first_of(loss) for loss in ("contrastive", "ce")]


@once
def results(devices, *more):
    """Return the output of `distributed_training.py` on `devices` devices."""
    return device_programs.printed("distributed_training", devices, *more)


@once
def of_workers(*words):
    """Return the output of two workers that train together over loopback."""
    started = local_workers.start(2, "tests.support.distributed_training", *words)
    printed = local_workers.finish(started)
    return [json.loads(out.strip().splitlines()[-1]) for out in printed]


def trained(case, devices):
    """Return the trained cases on `devices` devices."""
    more = () if case in QUICK else ("more",)
    return results(max(devices, 2), *more)["one" if devices == 1 else "many"][case]


devices_and_workers = pytest.mark.parametrize(
    "find",
    [lambda: [results(2)], pytest.param(lambda: of_workers(), marks=pytest.mark.slow)],
    ids=["two devices", "two workers"],
)


def difference(a, b):
    """Return the largest difference of two runs' weights, relative to the largest weight."""
    return device_programs.difference(a["weights"], b["weights"])


@pytest.mark.parametrize("case", [*QUICK, *MORE])
def test_the_weights_equal_one_device(case):
    assert difference(trained(case, 1), trained(case, 2)) < tolerance(case)


@pytest.mark.thorough
@pytest.mark.slow
@pytest.mark.parametrize("case", [*QUICK, *MORE])
def test_the_weights_on_four_devices_equal_one_device(case):
    assert difference(trained(case, 1), trained(case, 4)) < tolerance(case)


@pytest.mark.parametrize("case", [*QUICK, *MORE])
def test_the_logs_equal_one_device(case):
    logs = trained(case, 2)["logs"]
    assert logs == pytest.approx(trained(case, 1)["logs"], rel=tolerance(case))
    loss, *_ = distributed_training.CASES.get(case, (case,))
    if loss in distributed_training.WITH_PARTS:
        assert logs["loss"] == pytest.approx(logs["tightness"] + logs["contrastive"], rel=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("case", QUICK)
def test_two_workers_equal_one_process(case):
    check_workers(case, *(worker["cases"][case] for worker in of_workers()))


@pytest.mark.slow
@pytest.mark.parametrize("case", MORE)
def test_two_workers_equal_one_process_for_every_loss(case):
    check_workers(case, *(worker[case] for worker in of_workers("more")))


def tolerance(case):
    """PCE divides by its smallest eigenvalue, whose rounding depends on the order of the sums."""
    return 1e-4 if case.startswith("pce(") else 1e-5


def check_workers(case, first, second):
    assert difference(trained(case, 1), first) < tolerance(case)
    expected = {name: trained(case, 1)["logs"][name] for name in first["logs"]}
    assert first["logs"] == pytest.approx(expected, rel=tolerance(case))
    assert first == second


@pytest.mark.slow
@pytest.mark.thorough
def test_several_steps_per_execution_give_the_same_weights():
    """Five steps, three at once: the data ends within the second execution."""
    expected = trained("rankmi_model", 1)
    for found in (results(2, "more"), *of_workers()):
        assert difference(expected, found["several_steps"]) < 1e-5
        assert found["several_steps"]["logs"] == pytest.approx(expected["logs"], rel=1e-5)


@pytest.mark.thorough  # the first test that waits for this process, which takes two minutes
@pytest.mark.slow
def test_a_memory_with_several_steps_per_execution_in_chunks():
    expected, found = trained("memory", 1), results(2, "more")["several_steps_with_memory"]
    assert difference(expected, found) < 1e-5


@pytest.mark.thorough
@pytest.mark.parametrize("devices", [1, 2, 4])
def test_an_overflow_on_any_replica_skips_the_step_and_lowers_the_scale(devices):
    found = trained("overflow", devices)
    assert found["after"] == found["before"]
    assert found["scale"] == 2.0**14


@pytest.mark.thorough
@pytest.mark.parametrize("devices", [2, 4])
def test_a_custom_loop_needs_no_scaling(devices):
    """The example in the guide to devices; its loss equals the loss of the global batch."""
    expected, found = trained("loop", 1), trained("loop", devices)
    assert difference(expected, found) < 1e-5
    assert found["loss"] == pytest.approx(expected["loss"], rel=1e-5)
    assert len(found["loss"]) == 5 and found["loss"][-1] < found["loss"][0]


@pytest.mark.thorough
@pytest.mark.parametrize("name", distributed_training.REFUSED)
def test_unsupported_cases_on_replicas_are_one_line(name):
    argument = "jit_compile" if "jit" in name else "gradient_accumulation_steps"
    value = True if "jit" in name else 2
    message = results(2, "more")["refusals"][name]
    assert message.startswith(f"ArgumentError: {argument} must be ")
    assert f"several replicas, but got {value}." in message and "\n" not in message


@pytest.mark.parametrize(
    ("replicas", "workers"),
    [
        (2, False),
        pytest.param(4, False, marks=[pytest.mark.slow, pytest.mark.thorough]),
        pytest.param(2, True, marks=pytest.mark.slow),
    ],
)
def test_gathered_rows_offset_and_gradient_on_every_replica(replicas, workers):
    """Replica r has rows 10r and 10r + 1 and weighs gathered row j by (r + 1) j."""
    expected = [[10.0 * replica + row] for replica in range(replicas) for row in range(2)]
    uses = sum(replica + 1 for replica in range(replicas))
    gradients = [
        [[uses * 2.0 * replica], [uses * (2.0 * replica + 1)]] for replica in range(replicas)
    ]
    offsets = [2 * replica for replica in range(replicas)]
    if workers:
        for index, worker in enumerate(of_workers()):
            assert worker["gathered"] == [[expected], [offsets[index]], [gradients[index]]]
    else:
        assert results(replicas)["gathered"] == [[expected] * replicas, offsets, gradients]


def test_unequal_replicas_raise_a_clear_error():
    known, at_run_time = results(2)["unequal"]
    assert known.startswith("ArgumentError")
    assert "but got replicas with [2, 3] rows" in known
    assert at_run_time.startswith("InvalidArgumentError")
    for message in (known, at_run_time):
        assert "The global batch must be a multiple of the 2 replicas" in message


@devices_and_workers
def test_every_image_is_embedded_once_for_any_batch_size(find):
    for found in find():
        for embeddings in found["embedded"].values():
            assert embeddings == list(range(distributed_training.IMAGES))


@devices_and_workers
def test_batch_norm_per_replica_with_averaged_statistics(find):
    before, after = (
        [value for found in find() for value in found["batch_norm"][when]]
        for when in ("before", "after")
    )
    assert not np.allclose(before[0], before[1], rtol=1e-2)
    mean = np.mean(before, axis=0)
    np.testing.assert_allclose(after, [mean, mean], rtol=1e-6)


def test_synchronized_batch_norm_equals_one_device():
    found, expected = (results(2)[side]["synchronized"] for side in ("many", "one"))
    assert difference(expected, found) < 1e-5
    assert difference(expected, results(2)["batch_norm"]) > 1e-3


def test_one_device_returns_the_same_tensor():
    x = tf.constant([[1.0, 2.0]])
    gathered, offset = gather_candidates(x)
    assert gathered is x and offset == 0
    assert place_among_replicas() == (0, 1)


@pytest.mark.slow
@tiers.parametrize("case", LOSSES, IN_THE_GATE, pytest.mark.thorough)
def test_xla_gives_the_same_weights(case):
    strategy = tf.distribute.get_strategy()
    plain, compiled = (
        distributed_training.train(
            strategy, *distributed_training.CASES[case], jit_compile=jit_compile
        )
        for jit_compile in (False, True)
    )
    assert difference(plain, compiled) < tolerance(case)
    assert compiled["logs"]["loss"] == pytest.approx(plain["logs"]["loss"], rel=tolerance(case))
