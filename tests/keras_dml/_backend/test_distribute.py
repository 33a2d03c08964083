"""Training on many devices equals training on one device with the same global batches."""

import functools
import json

import local_workers
import numpy as np
import processes
import pytest
import tiers
from distributed_training import CASES, IMAGES, ON_WORKERS, QUICK, REFUSED
from processes import run_python

# The gate runs the tests that need processes with several devices.
pytestmark = pytest.mark.slow


@functools.cache
def results(devices, *more):
    """Return the output of `distributed_training.py` on `devices` devices."""
    said = run_python("-m", "tests.support.distributed_training", devices, *more)
    return json.loads(said.strip().splitlines()[-1])


@functools.cache
def of_workers(*words):
    """Return the output of two workers that train together over loopback."""
    started = local_workers.start(2, "tests.support.distributed_training", *words)
    printed = local_workers.finish(started)
    return [json.loads(out.strip().splitlines()[-1]) for out in printed]


def trained(case, where):
    """Return the result of a case on 1, 2, or 4 devices, or of two workers, which must agree."""
    quick = case in (ON_WORKERS if where == "workers" else QUICK)
    more = () if quick else ("more",)
    if where == "workers":
        first, second = ((of["cases"] if quick else of)[case] for of in of_workers(*more))
        assert first == second
        return first
    return results(max(where, 2), *more)["one" if where == 1 else "many"][case]


devices_and_workers = pytest.mark.parametrize(
    "find",
    [lambda: [results(2)], lambda: of_workers()],
    ids=["two devices", "two workers"],
)


def difference(a, b):
    """Return the largest difference of two runs' weights, relative to the largest weight."""
    return processes.difference(a["weights"], b["weights"])


# The gate runs the quick cases; the thorough checks run all.
@tiers.parametrize(
    ("where", "case"),
    [(where, case) for where in (2, 4, "workers") for case in CASES],
    [*((2, case) for case in QUICK), *(("workers", case) for case in ON_WORKERS)],
)
def test_weights_and_logs_equal_one_device(case, where):
    found, expected = trained(case, where), trained(case, 1)
    assert difference(expected, found) < tolerance(case)
    logs = found["logs"]
    assert logs == pytest.approx(expected["logs"], rel=tolerance(case))
    if "tightness" in logs:
        assert logs["loss"] == pytest.approx(logs["tightness"] + logs["contrastive"], rel=1e-5)


def tolerance(case):
    """PCE divides by its smallest eigenvalue, whose rounding depends on the order of the sums."""
    return 1e-4 if case.startswith("pce(") else 1e-5


@pytest.mark.thorough  # the first test that waits for this process, which takes two minutes
def test_several_steps_per_execution_give_the_same_weights():
    """Five steps, three at once: the data ends within the second execution."""
    of_devices, expected = results(2, "more"), trained("rankmi_model", 1)
    for found in (of_devices, *of_workers("more")):
        assert difference(expected, found["several_steps"]) < 1e-5
        assert found["several_steps"]["logs"] == pytest.approx(expected["logs"], rel=1e-5)
    assert difference(trained("memory", 1), of_devices["several_steps_with_memory"]) < 1e-5


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
@pytest.mark.parametrize("name", REFUSED)
def test_unsupported_cases_on_replicas_are_one_line(name):
    argument = "jit_compile" if "jit" in name else "gradient_accumulation_steps"
    value = True if "jit" in name else 2
    message = results(2, "more")["refusals"][name]
    assert message.startswith(f"ArgumentError: {argument} must be ")
    assert f"several replicas, but got {value}." in message and "\n" not in message


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
            assert embeddings == list(range(IMAGES))


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
