"""The catalog reads from the source what the imported classes say."""

import inspect
import pathlib
import subprocess
import sys
import types
import typing

import pytest

from keras_dml import losses, models
from keras_dml.losses import catalog

pytestmark = pytest.mark.any_backend

ROOT = pathlib.Path(catalog.__file__).parents[2]
CLASSES = [*losses.LOSSES.values(), models.RankMI, models.StatisticsNetwork, models.ProxyHead]
NOT_GIVEN = ("reduction", "name", "dtype", "seed", "zero_at", "num_classes")
every_class = pytest.mark.parametrize("described", CLASSES, ids=lambda cls: cls.__name__)


def live_kind(annotation):
    """The type and the choices of an annotation; None for an object's."""
    if typing.get_origin(annotation) in (types.UnionType, typing.Union):
        annotation, *others = typing.get_args(annotation)
        if others != [type(None)] and typing.get_origin(annotation) is not typing.Literal:
            return None, None  # an object, or a list of them
    if typing.get_origin(annotation) is typing.Literal:
        return str, typing.get_args(annotation)
    return (annotation if annotation in (bool, int, float, str) else None), None


@every_class
def test_it_is_what_the_signature_says(described):
    live = []
    for parameter in inspect.signature(described).parameters.values():
        elsewhere = parameter.name in NOT_GIVEN
        if elsewhere or parameter.kind is parameter.VAR_KEYWORD:
            continue
        kind, choices = live_kind(parameter.annotation)
        if kind is not None:
            live.append((parameter.name, kind, parameter.default, choices))
    read = catalog.arguments(described)
    assert [(each.name, each.kind, each.default, each.choices) for each in read] == live


@every_class
def test_every_argument_is_documented_by_an_entry_of_its_own(described):
    docstring = inspect.getdoc(described)
    assert catalog.summary(described) == docstring.splitlines()[0]
    one_line = " ".join(docstring.split())
    for argument in catalog.arguments(described):
        assert len(argument.text) >= 10
        assert f"{argument.name}: {argument.text}" in one_line
        assert f"\n    {argument.name}: " in docstring


@every_class
def test_every_choice_is_taken_and_no_other(described):
    for argument in catalog.arguments(described):
        if described is models.RankMI or argument.choices is None:
            continue
        needed = {"num_classes": 3} if described is models.ProxyHead else {}
        for choice in argument.choices:
            assert getattr(described(**needed, **{argument.name: choice}), argument.name) == choice
        with pytest.raises(ValueError, match=f"{argument.name} must be one of"):
            described(**needed, **{argument.name: "neither"})


def test_the_arguments_of_one_and_those_of_rankmi():
    margin, normalize, reduction, positive_margin, power = catalog.arguments("contrastive")
    assert (margin.name, margin.kind, margin.default, margin.choices) == (
        "margin", float, 1.0, None,
    )  # fmt: skip
    assert (normalize.name, normalize.kind, normalize.default) == ("normalize", bool, False)
    assert (reduction.kind, reduction.choices) == (str, ("sum", "mean"))
    assert reduction.text.startswith('`"sum"` over j as in the paper, or `"mean"`, which divides')
    assert (power.name, power.kind, power.default) == ("power", int, 2)
    taken = (margin, normalize, reduction, positive_margin, power)
    assert catalog.arguments(losses.ContrastiveLoss) == taken
    of_model = catalog.arguments("keras_dml.models.rankmi.RankMI")
    assert [argument.name for argument in of_model] == ["k", "beta", "alpha", "sampling"]
    of_network = catalog.arguments(models.StatisticsNetwork)
    assert [argument.name for argument in of_network] == ["hidden", "depth", "slope", "residual"]
    assert [argument.default for argument in catalog.arguments("pce")] == [None, 0.001]


def test_what_a_command_line_gives_goes_to_the_class_that_the_loss_names():
    for name, loss in losses.LOSSES.items():
        assert catalog.trained_by(name) == (loss.trained_by or name)
    module, _, model = catalog.trained_by("rankmi").rpartition(".")
    assert getattr(sys.modules[module], model) is models.RankMI
    with pytest.raises(LookupError, match="loss must be one of"):
        catalog.trained_by("hinge")


def test_names_are_the_losses():
    assert catalog.names() == tuple(losses.LOSSES)
    assert {loss.__name__ for loss in losses.LOSSES.values()} <= set(losses.__all__)
    assert all(hasattr(losses, name) for name in losses.__all__)


def test_the_table_has_a_row_for_each():
    head, rule, *rows = catalog.table().splitlines()
    assert head.count("|") == rule.count("|") == 4
    assert len(rows) == len(losses.LOSSES)
    for name, row in zip(losses.LOSSES, rows):
        assert f"| `{name}` | `{losses.LOSSES[name].__name__}(" in row
    (snca,) = [row for row in rows if "`snca`" in row]
    assert snca.endswith("| `snca` | `SNCALoss(temperature=0.05)` |")


class Undocumented:
    """Does something.

    Args:
        alpha: α, above 0. beta: β, above 0.
    """

    def __init__(self, alpha: float = 1.0, beta: float = 2.0):
        pass


class Unannotated:
    """Does something.

    Args:
        alpha: α, above 0.
    """

    def __init__(self, alpha=1.0):
        pass


@pytest.mark.parametrize(
    ("described", "message"),
    [
        (Undocumented, r"Undocumented\(beta\) must have an entry of its own under Args:"),
        (Unannotated, r"Unannotated\(alpha\) must be annotated"),
    ],
)
def test_what_the_source_leaves_out_is_refused(described, message, monkeypatch):
    # Tests are imported as files: their modules are not in the list of modules.
    module = types.SimpleNamespace(__file__=__file__)
    monkeypatch.setitem(sys.modules, described.__module__, module)
    with pytest.raises(TypeError, match=message):
        catalog.arguments(described)


def test_an_unknown_loss():
    with pytest.raises(LookupError, match="loss must be one of .*contrastive.*loss='hinge'"):
        catalog.summary("hinge")
    with pytest.raises(LookupError, match="no source of a module keras_dml.nowhere"):
        catalog.arguments("keras_dml.nowhere.Class")
    with pytest.raises(LookupError, match="no class Model in keras_dml.models.rankmi"):
        catalog.arguments("keras_dml.models.rankmi.Model")


def test_a_name_is_registered_once():
    from keras_dml.losses.registry import register

    register("triplet")(losses.TripletLoss)  # as a reload would
    with pytest.raises(ValueError, match="TripletLoss of .* is the loss 'triplet' already"):
        register("triplet")(losses.SNCALoss)
    assert losses.LOSSES["triplet"] is losses.TripletLoss


def test_the_command_lines_catalog_brings_no_keras():
    program = (
        "import sys; from experiments.options import catalog\n"
        "print(catalog.names()[0], catalog.arguments('triplet')[0].name)\n"
        "print({'keras', 'tensorflow', 'keras_dml.losses'} & set(sys.modules))"
    )
    run = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, cwd=ROOT
    )
    assert run.stdout.splitlines() == ["arcface margin", "set()"]
