"""Each benchmark prints its table."""

import importlib.machinery
import importlib.util
import math
import signal
import sys
import types

import keras
import numpy as np
import pytest
import tiers

from experiments import benchmark
from experiments.benchmarks import losses as benchmark_losses
from experiments.benchmarks import measuring, retrieval, torch_training
from experiments.options import RunOptions, parse
from experiments.options.command_line import RunError, run_command
from keras_dml import models


def table(capsys, *words):
    """Return the lines that a benchmark prints."""
    assert run_command(benchmark.main, ["benchmark", *words]) == 0
    return capsys.readouterr().out.splitlines()


def test_the_table_of_the_losses_has_a_row_for_a_killed_process(monkeypatch, capsys):
    times = {"snca": {"formula": 2.0}, "smooth_ap": {"fused": 3.0, "peer": 4.0, "XLA": 1.5}}

    def rows(function, name, size, dimensions, xla):
        assert (function, dimensions, xla) == (benchmark_losses.measure_loss, 128, False)
        if name == "snca" and size == 8:
            raise RunError("killed, probably because memory ran out")
        yield {"loss": name, "n": size, "MB": 7.0, "device": "CPU", "floor": 1.0, **times[name]}

    monkeypatch.setattr(measuring, "child_rows", rows)
    arguments = ["--losses=snca,smooth_ap", "--sizes=1024,8", "--dimensions=128", "--noxla"]
    assert run_command(benchmark.main, ["benchmark", "losses", *arguments]) == 1
    printed = capsys.readouterr()
    columns, *lines, reason = printed.out.splitlines()
    assert " ".join(columns.split()[:9]) == "loss n formula fused / floor / peer XLA"
    assert [line.split() for line in lines] == [
        ["snca", "8", "killed,", "probably", "because", "memory", "ran", "out"],
        ["snca", "1024", "2.00", "–", "2.00", "–", "–", "7", "CPU"],
        ["smooth_ap", "8", "–", "3.00", "3.00", "0.75", "1.50", "7", "CPU"],
        ["smooth_ap", "1024", "–", "3.00", "3.00", "0.75", "1.50", "7", "CPU"],
    ]
    assert reason.startswith("fused, smooth_ranks: Smooth ranks") and "O(n²) memory" in reason
    assert printed.err == "stopped: not measured: snca at n = 8\n"


def test_a_killed_child_process_is_reported_as_out_of_memory():
    with pytest.raises(RunError, match="killed.*memory"):
        list(measuring.child_rows(signal.raise_signal, signal.SIGKILL))


@pytest.mark.any_backend
@pytest.mark.slow
@tiers.parametrize(
    "name",
    benchmark_losses.pair_losses(),
    ("contrastive", "rankmi", "smooth_ap"),
    pytest.mark.thorough,
)
def test_every_loss_can_be_measured(name, monkeypatch):
    monkeypatch.setattr(measuring, "SECONDS", 0.0)
    on_tensorflow = keras.backend.backend() == "tensorflow"
    [row] = benchmark_losses.measure_loss(name, 16, 8, on_tensorflow)
    assert (row["loss"], row["n"], row["device"]) == (name, 16, "CPU")
    times = {"formula", "floor"} | ({"fused"} if name in ("smooth_ap", "recall_at_k") else set())
    times |= {"XLA"} if on_tensorflow else set()
    assert set(row) - {"peer"} == {"loss", "n", "MB", "device", *times}
    assert all(row[name] > 0 for name in times)


@tiers.thorough
@pytest.mark.skipif(importlib.util.find_spec("scann") is None, reason="ScaNN is not installed")
def test_the_retrieval_benchmark_prints_scores_and_certificates(monkeypatch, capsys):
    monkeypatch.setattr(retrieval, "MILLION", (3_000, 300, 8))
    monkeypatch.setattr(retrieval, "EXACT_IMAGES", 1_000)
    head, *rows = table(capsys, "retrieval")
    assert head.split()[-4:] == list(retrieval.SCORES)
    searched = [row[:36].strip() for row in rows[::4]]
    assert searched == ["3,000 x 8, scann", "1,000 x 8, scann", "1,000 x 8, exact"]
    scores = np.array([row.split()[-4:] for row in rows], float)
    assert (scores[2] < scores[0]).all() and (scores[0] < scores[3]).all()
    np.testing.assert_array_equal(scores[4], scores[8])  # a small set has no tree


def end_to_end_row(program, words, steps, rates, backend):
    assert len(rates) == steps
    assert backend == ("torch" if program.__module__.endswith("torch_training") else None)
    row = {"images": 120, "step": 50.0, "data": 4.0, "MB": 900.0, "R@1": 0.85}
    if "--loss=rankmi" not in words:
        row |= {"f+b": 40.0, "with loss": 42.0, "whole": 45.0}
        row |= {"bare": 49.0} if backend is None else {}
    yield row


def test_the_table_of_whole_trainings(monkeypatch, capsys):
    monkeypatch.setattr(measuring, "child_rows", end_to_end_row)
    installed = types.ModuleType("pytorch_metric_learning")
    installed.__spec__ = importlib.machinery.ModuleSpec(installed.__name__, None)
    monkeypatch.setitem(sys.modules, installed.__name__, installed)
    columns, *rows = table(capsys, "end_to_end", "--steps=4", "--losses=ce,rankmi", "--rounds=1")
    assert columns.split()[:2] == ["network", "loss"]
    assert [row.split()[3:] for row in rows] == [
        ["keras_dml", "2,400", "4.0", "40.0", "2.0", "3.0", "5.0", "1.19", "1.02", "900", "85.0"],
        ["torch", "2,400", "4.0", "40.0", "2.0", "3.0", "5.0", "1.19", "–", "900", "85.0"],
        ["keras_dml", "2,400", "4.0", "–", "–", "–", "–", "–", "–", "900", "85.0"],
    ]


@tiers.thorough
def test_a_whole_training_of_the_glyphs_net(capsys):
    _, row, *_ = table(capsys, "end_to_end", "--steps=4", "--losses=multi_similarity", "--rounds=1")
    assert row.split()[:4] == ["small_convnet", "32", "multi_similarity", "keras_dml"]
    assert float(row.split()[4].replace(",", "")) > 0


@pytest.mark.parametrize("flag", ["--weights=imagenet", "--loss=snca", "--backbone=resnet50"])
def test_torch_trains_only_what_it_has(flag):
    words = ["experiments.run", "--flagfile=glyphs.flags", "--weights=none"]
    assert torch_training.can_train(parse(RunOptions, words))
    assert not torch_training.can_train(parse(RunOptions, [*words, flag]))


@pytest.mark.any_backend
@pytest.mark.slow
@pytest.mark.skipif(keras.backend.backend() != "torch", reason="needs torch without TensorFlow")
@pytest.mark.parametrize("name", torch_training.NETWORKS)
def test_networks_in_torch_are_the_networks_of_keras(name):
    from experiments.benchmarks import torch_networks

    ours = models.build_backbone(name, 64, "none")
    theirs = getattr(torch_networks, name)()
    sizes = sum(each.numel() for each in theirs.parameters())
    assert sizes == sum(math.prod(each.shape) for each in ours.trainable_variables)
    images = np.random.default_rng(0).uniform(0, 255, (2, 64, 64, 3)).astype("float32")
    found = theirs(keras.ops.convert_to_tensor(images.transpose(0, 3, 1, 2)))
    assert tuple(found.shape) == (2, ours.output_shape[3], *ours.output_shape[1:3])
