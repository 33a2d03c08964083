"""Signatures of the public functions, classes, and methods, as `help` shows them."""

import inspect

import pytest

import keras_dml
from keras_dml import losses, mining, relations


def public_callables():
    for name in keras_dml.__all__:
        module = getattr(keras_dml, name)
        for public in getattr(module, "__all__", ()):
            value = getattr(module, public)
            if not callable(value):
                continue
            yield f"{name}.{public}", value
            for method, function in vars(value).items() if inspect.isclass(value) else ():
                if method[0] != "_" and inspect.isfunction(function):
                    yield f"{name}.{public}.{method}", function


def test_no_signature_is_longer_than_five_lines_of_a_terminal():
    lengths = {}
    for name, function in public_callables():
        try:
            lengths[name] = len(str(inspect.signature(function)))
        except ValueError:  # a type alias
            continue
    assert lengths["losses.TripletLoss"] > 0
    assert {name: length for name, length in lengths.items() if length > 400} == {}


@pytest.mark.parametrize("loss", [losses.TripletLoss, losses.MarginLoss, losses.PairLoss])
def test_the_signature_of_a_loss_over_pairs_names_the_aliases(loss):
    parameters = inspect.signature(loss).parameters
    assert parameters["mining"].annotation in mining.__all__
    assert parameters["relation"].annotation in relations.__all__


def test_the_first_line_of_cross_entropy_states_its_default_smoothing():
    default = inspect.signature(losses.CrossEntropyLoss).parameters["label_smoothing"].default
    first = inspect.getdoc(losses.CrossEntropyLoss).splitlines()[0]
    assert f"smoothed by {default} (default)" in first
