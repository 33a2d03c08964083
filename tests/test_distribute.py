"""Many devices train to what one device trains to, with the same global batches."""

import functools
import json
import pathlib
import subprocess
import sys

import distributed_training
import numpy as np
import pytest
import tensorflow as tf

from keras_dml.distribute import gather_candidates

LOSSES = ("contrastive", "multi_similarity", "cross_entropy")
RUNS = [(2, case) for case in distributed_training.CASES] + [(4, case) for case in LOSSES]


@functools.cache
def results(devices):
    """What `distributed_training.py` prints for so many devices."""
    cases = [case for number, case in RUNS if number == devices]
    program = subprocess.run(
        [sys.executable, "-m", "tests.distributed_training", str(devices), *cases],
        cwd=pathlib.Path(__file__).parent.parent,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert program.returncode == 0, program.stderr[-3000:]
    return json.loads(program.stdout.strip().splitlines()[-1])


def difference(one, other):
    """The largest difference of two runs' weights, relative to the largest weight."""
    a, b = (np.concatenate([np.ravel(w) for w in run["weights"]]) for run in (one, other))
    return np.abs(a - b).max() / np.abs(a).max()


@pytest.mark.parametrize(("devices", "case"), RUNS)
def test_the_weights_and_logs_are_those_of_one_device(devices, case):
    assert results(devices)["devices"] == devices
    one, many = (results(devices)["cases"][case][side] for side in ("one", "many"))
    assert difference(one, many) < 1e-5
    assert set(many["logs"]) == {"loss", "tightness", "contrastive"}
    for name, value in one["logs"].items():
        assert many["logs"][name] == pytest.approx(value, rel=1e-5)
    parts = many["logs"]["tightness"] + many["logs"]["contrastive"]
    assert many["logs"]["loss"] == pytest.approx(parts, rel=1e-5)


@pytest.mark.parametrize("devices", [2, 4])
def test_pairs_within_the_replicas_alone_train_something_else(devices):
    """So the comparison above would notice a loss that did not gather."""
    one = results(devices)["cases"]["contrastive"]["one"]
    assert difference(one, results(devices)["not_gathered"]) > 1e-3


@pytest.mark.parametrize("devices", [2, 4])
def test_every_replica_gets_all_rows_its_offset_and_the_gradient_of_all_uses(devices):
    """Replica r holds rows 10r and 10r + 1 and weighs gathered row j by (r + 1) j."""
    rows, offsets, gradients = results(devices)["gathered"]
    expected = [[10.0 * replica + row] for replica in range(devices) for row in range(2)]
    assert rows == [expected] * devices
    assert offsets == [2 * replica for replica in range(devices)]
    uses = sum(replica + 1 for replica in range(devices))
    assert gradients == [
        [[uses * 2.0 * replica], [uses * (2.0 * replica + 1)]] for replica in range(devices)
    ]


def test_one_device_gets_its_own_tensor_back():
    x = tf.constant([[1.0, 2.0]])
    gathered, offset = gather_candidates(x)
    assert gathered is x and offset == 0


def test_a_strategy_of_one_replica_gets_its_own_tensor_back():
    x = tf.constant([[1.0, 2.0]])
    strategy = tf.distribute.OneDeviceStrategy("/cpu:0")
    same = strategy.run(lambda: gather_candidates(x)[0] is x)
    assert same is True


@pytest.mark.parametrize("case", LOSSES)
def test_compiled_by_xla_it_trains_to_the_same(case):
    strategy = tf.distribute.get_strategy()
    plain, compiled = (
        distributed_training.train(
            strategy, *distributed_training.CASES[case], jit_compile=jit_compile
        )
        for jit_compile in (False, True)
    )
    assert difference(plain, compiled) < 1e-5
    assert compiled["logs"]["loss"] == pytest.approx(plain["logs"]["loss"], rel=1e-5)
