"""The flags of the losses, of their proxies and of RankMI's statistics network."""

from __future__ import annotations

import contextlib
import dataclasses
import re
from collections.abc import Iterator, Mapping
from typing import Any

from experiments.options import catalog
from experiments.options.declaration import Flag
from experiments.options.errors import UsageError
from experiments.options.help import shown
from experiments.recipes.nearest import did_you_mean

__all__ = [
    "CROSS_ENTROPY",
    "MEMORY",
    "PROXIES",
    "STATISTICS",
    "checked",
    "divided",
    "flags_of_losses",
    "flags_of_memory",
    "flags_of_proxies",
    "flags_of_statistics",
    "naming_flags",
    "taken_by",
]

GROUP = "Loss"
STATISTICS = "statistics_"
PROXIES = "proxies_"
MEMORY = "memory_"
CROSS_ENTROPY: Mapping[str, Any] = {"label_smoothing": 0.0}
"""Arguments of the cross-entropy that is trained next to a loss, with their defaults there.

ε = 0 is the plain −log p of Boudiaf et al. 2020, Table 2.
"""
_STATISTICS_NETWORK = "keras_dml.models.statistics_network.StatisticsNetwork"
_CROSS_BATCH_MEMORY = "keras_dml.models.cross_batch_memory.CrossBatchMemory"
_PROXY_HEAD = "keras_dml.models.proxy_head.ProxyHead"


def taken_by(loss: str) -> dict[str, Any]:
    """What a loss takes on a command line: `catalog.Argument`s by name.

    A loss that is trained next to a cross-entropy takes the arguments of the cross-entropy too.
    """
    taken = {argument.name: argument for argument in catalog.arguments(catalog.trained_by(loss))}
    if _has_cross_entropy(loss):
        for argument in catalog.arguments("ce"):
            if argument.name in CROSS_ENTROPY:
                taken[argument.name] = dataclasses.replace(
                    argument,
                    default=CROSS_ENTROPY[argument.name],
                    text=f"of the cross-entropy next to it: {argument.text}",
                )
    return taken


def divided(loss: str, given: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Divide the arguments into those of the loss and those of the cross-entropy next to it."""
    next_to_it = {
        name: value
        for name, value in given.items()
        if name in CROSS_ENTROPY and _has_cross_entropy(loss)
    }
    return {name: value for name, value in given.items() if name not in next_to_it}, next_to_it


def _has_cross_entropy(loss: str) -> bool:
    return bool(catalog.attribute(loss, "kind") == "beside_classifier")


def flags_of_losses() -> tuple[Flag, ...]:
    """A flag for each argument of a loss; where losses share its name, it says what it is in each.

    Raises:
        TypeError: losses that share a name, but not the type of what it stands for.
    """
    sharing: dict[str, dict[str, Any]] = {}
    for loss in catalog.names():
        for name, argument in taken_by(loss).items():
            sharing.setdefault(name, {})[loss] = argument
    return tuple(_flag(name, of_losses) for name, of_losses in sharing.items())


def flags_of_statistics() -> tuple[Flag, ...]:
    """The flags of the statistics network."""
    return tuple(
        Flag(
            f"{STATISTICS}{argument.name}",
            argument.kind,
            argument.default,
            GROUP,
            f"rankmi's statistics network: {argument.text}",
            choices=argument.choices,
        )
        for argument in catalog.arguments(_STATISTICS_NETWORK)
    )


def flags_of_proxies() -> tuple[Flag, ...]:
    """The flags of the head that holds the proxies."""
    return tuple(
        Flag(
            f"{PROXIES}{argument.name}",
            argument.kind,
            None,
            GROUP,
            f"losses over proxies: {argument.text} Default: the loss's own, or "
            f"{shown(argument.default)}.",
            choices=argument.choices,
        )
        for argument in catalog.arguments(_PROXY_HEAD)
    )


def flags_of_memory() -> tuple[Flag, ...]:
    """The flags of the memory of earlier batches."""
    return tuple(
        Flag(
            f"{MEMORY}{argument.name.removeprefix(MEMORY)}",
            argument.kind,
            None,
            GROUP,
            f"losses over pairs: {argument.text} Default: "
            f"{shown(argument.default) or 'no memory'}.",
            choices=argument.choices,
        )
        for argument in catalog.arguments(_CROSS_BATCH_MEMORY)
    )


def checked(loss: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """The given arguments, if the loss takes them all.

    Raises:
        UsageError: no such loss; an argument that it does not take, or not with this value.
    """
    if loss not in catalog.names():
        names = catalog.names()
        raise UsageError(
            f"loss must be one of {', '.join(names)}.{did_you_mean(loss, names)} "
            f"Received: loss={loss!r}"
        )
    taken = taken_by(loss)
    for name, value in given.items():
        if name not in taken:
            raise UsageError(
                f"{name} is no argument of loss {loss}, which takes "
                f"{', '.join(taken) or 'none'}. Received: {name}={value}"
            )
        choices = taken[name].choices
        if choices and value not in choices:
            raise UsageError(
                f"{name} must be one of {', '.join(choices)} for loss {loss}. "
                f"Received: {name}={value}"
            )
    return dict(given)


@contextlib.contextmanager
def naming_flags(prefix: str, given: Mapping[str, Any]) -> Iterator[None]:
    """Refusals of the library name the flags: it knows its arguments without the prefix.

    Raises:
        UsageError: in place of the library's ArgumentError.
    """
    from keras_dml._common.errors import ArgumentError  # Keras comes with it

    try:
        yield
    except ArgumentError as error:
        if not given:
            raise
        names = "|".join(map(re.escape, given))
        named = re.sub(rf"\b({names})( must|=)", rf"{prefix}\1\2", str(error))
        raise UsageError(named) from error


def _flag(name: str, of_losses: Mapping[str, Any]) -> Flag:
    kinds = {argument.kind for argument in of_losses.values()}
    if len(kinds) > 1:
        raise TypeError(
            f"{name} must be of one type in all losses that take it, since it is one flag: "
            f"{', '.join(of_losses)}"
        )
    # Losses that say the same of it share a line.
    meant: dict[str, list[str]] = {}
    for loss, argument in of_losses.items():
        choices = f" One of {', '.join(argument.choices)}." if argument.choices else ""
        said = f"{argument.text}{choices} Default: {shown(argument.default) or 'none'}."
        meant.setdefault(said, []).append(loss)
    text = "\n".join(f"{', '.join(losses)}: {said}" for said, losses in meant.items())
    return Flag(name, kinds.pop(), None, GROUP, text)
