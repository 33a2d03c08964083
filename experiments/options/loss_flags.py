"""The flags of the losses, of their proxies, of the memory, and of RankMI's statistics network."""

from __future__ import annotations

import contextlib
import dataclasses
import importlib.util
import pathlib
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from experiments.options.absl_flags import converted
from experiments.options.declared import Flag
from experiments.options.errors import UsageError
from experiments.options.registry_flags import arguments, flags_of_entries, import_attribute
from experiments.recipes.nearest import did_you_mean

if TYPE_CHECKING:
    from keras_dml.losses.base import EmbeddingLoss


GROUP = "Loss"
# The model that has the arguments of a loss, by the kind of the loss.
_TRAINED_BY = {"statistics_network": "keras_dml.models.RankMI"}
STATISTICS = "statistics_"
PROXIES = "proxies_"
MEMORY = "memory_"
RELATION = "relation_"


def loss_names() -> tuple[str, ...]:
    """Return the names of the losses in alphabetical order."""
    return tuple(_losses())


def registered_names() -> tuple[str, ...]:
    """Return the names of the losses of the library, without importing Keras."""
    package = importlib.util.find_spec("keras_dml.losses")
    folder = pathlib.Path(package.origin if package and package.origin else "").parent
    texts = [path.read_text(encoding="utf-8") for path in folder.glob("*.py")]
    return tuple(sorted(re.findall(r'^@register\("(\w+)"', "\n".join(texts), re.MULTILINE)))


def trained_by(loss: str) -> Callable[..., Any]:
    """Return the class whose arguments a command line sets: the loss, or the model that trains it.

    Raises:
        UsageError: The loss does not exist.
    """
    found = _losses().get(loss)
    if found is None:
        names = loss_names()
        raise UsageError(
            f"loss must be one of {', '.join(names)}, but got {loss}.{did_you_mean(loss, names)}"
        )
    model = _TRAINED_BY.get(found.kind)
    return found if model is None else import_attribute(model)


def taken_by(loss: str) -> dict[str, Flag]:
    """Return the arguments that a loss takes on a command line, by name.

    Raises:
        UsageError: The loss does not exist.
    """
    return arguments(trained_by(loss))


def flags_of_losses() -> tuple[Flag, ...]:
    """Return a flag for each argument of a loss, described for each loss that takes it.

    Raises:
        TypeError: Losses share a name, but not its type.
    """
    return flags_of_entries({loss: trained_by(loss) for loss in loss_names()}, GROUP)


def checked(loss: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the given arguments if the loss takes all of them.

    Raises:
        UsageError: The loss does not exist, or does not take an argument or its value.
    """
    taken = taken_by(loss)
    for name, value in given.items():
        if name not in taken:
            raise UsageError(
                f"{name} must be unset for loss={loss}, but got {value}. This loss takes "
                f"{', '.join(taken) or 'no arguments'}."
            )
        choices = taken[name].choices
        if choices and value not in choices:
            raise UsageError(
                f"{name} must be one of {', '.join(choices)} for loss={loss}, but got {value}."
            )
    return dict(given)


def parsed_arguments(
    flag: str, given: Iterable[str], names: Sequence[str]
) -> dict[str, dict[str, Any]]:
    """Return the arguments of losses from words such as `contrastive/margin=0.5`.

    Args:
        flag: Name of the flag.
        given: The words. With a single loss, `margin=0.5` is enough.
        names: Names of the losses.

    Returns:
        {loss: {argument: value}}.

    Raises:
        UsageError: A word has another form, or a loss does not take the argument.
    """
    found: dict[str, dict[str, Any]] = {}
    for word in given:
        left, _, text = word.partition("=")
        owner, _, argument = left.rpartition("/")
        owner = owner or (names[0] if len(names) == 1 else "")
        if owner not in names or not text:
            raise UsageError(
                f"{flag} must be LOSS/ARGUMENT=VALUE for a loss of {', '.join(names) or 'none'}, "
                f"but got {word}."
            )
        taken = taken_by(owner)
        if argument not in taken:
            raise UsageError(
                f"{flag} must be an argument of {owner} ({', '.join(taken)}), but got {argument}."
            )
        named = dataclasses.replace(taken[argument], name=f"{flag}: {argument}")
        found.setdefault(owner, {})[argument] = converted(named, text)
    return found


@contextlib.contextmanager
def naming_flags(flags: Mapping[str, str]) -> Iterator[None]:
    """Name the flags in the library's messages.

    Args:
        flags: Names of flags by the library's names of the arguments.

    Raises:
        UsageError: Instead of an `ArgumentError` about one of the arguments.
    """
    from keras_dml._common.errors import ArgumentError

    try:
        yield
    except ArgumentError as error:
        if error.argument not in flags:
            raise
        raise UsageError(error.renamed(flags[error.argument])) from error


def _losses() -> Mapping[str, type[EmbeddingLoss]]:
    found: Mapping[str, type[EmbeddingLoss]] = import_attribute("keras_dml.losses.LOSSES")
    return found
