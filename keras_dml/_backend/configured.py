"""Objects whose configuration is the arguments of their constructor."""

import functools
import inspect
from collections.abc import Callable, Mapping
from typing import Any, Self

import keras

from keras_dml._common.errors import ArgumentTypeError, shown
from keras_dml._common.nearest import did_you_mean
from keras_dml._common.types import Config


def _name_unknown_arguments(cls: type) -> None:
    """Let the constructor name the class of the object, and the nearest argument.

    Python would name the constructor of a base class, which receives `**options`.
    """
    constructor: Callable[..., None] | None = vars(cls).get("__init__")
    # Keras inspects the constructors of layers and models.
    if constructor is None or issubclass(cls, keras.Operation):
        return

    @functools.wraps(constructor)
    def named(self: object, *args: Any, **kwargs: Any) -> None:
        try:
            constructor(self, *args, **kwargs)
        except TypeError as error:
            parameters = inspect.signature(type(self)).parameters.values()
            known = [each.name for each in parameters if each.kind is not each.VAR_KEYWORD]
            unknown = [name for name in kwargs if name not in known]
            is_python_s = "unexpected keyword argument" in str(error)
            if not (unknown and is_python_s) or isinstance(error, ArgumentTypeError):
                raise
            name = unknown[0]
            raise ArgumentTypeError(
                f"{name} must be an argument of {type(self).__name__} ({', '.join(known)}), but "
                f"got {name}={shown(kwargs[name])}.{did_you_mean(name, known)}"
            ) from None

    cls.__init__ = named  # type: ignore[misc]


def _list_inherited_arguments(cls: type) -> None:
    """Replace `**options` in the signature of a constructor with the arguments of the base."""
    constructor = vars(cls).get("__init__")
    of_base = inspect.signature(cls.__mro__[1]).parameters.values()
    if constructor is None or not of_base:
        return
    *own, last = inspect.signature(constructor).parameters.values()
    if last.kind is not inspect.Parameter.VAR_KEYWORD:
        return
    inherited = [
        parameter.replace(kind=max(parameter.kind, inspect.Parameter.KEYWORD_ONLY))
        for parameter in of_base
        if parameter.name not in {known.name for known in own}
    ]
    constructor.__signature__ = inspect.Signature([*own, *inherited])


class Configured:
    """A mixin for objects whose attributes have the names of their constructor's arguments.

    Place it before a Keras class in the bases, whose configuration is then included. Arguments that
    are objects, such as a model or a function, are serialized by Keras. Override `get_config` for
    an argument with another attribute.

    The `**options` of a constructor are the arguments of the base class, and the signature of the
    class lists them, because configurations, flags, and the reference read the signature.
    """

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        _list_inherited_arguments(cls)
        _name_unknown_arguments(cls)

    def get_config(self) -> Config:
        """Return the constructor's arguments."""
        of_base: Config = getattr(super(), "get_config", dict)()
        names = inspect.signature(type(self)).parameters
        own = {name: _plain(getattr(self, name)) for name in names if hasattr(self, name)}
        return {**own, **of_base}

    @classmethod
    def from_config(cls, config: Config, custom_objects: Mapping[str, Any] | None = None) -> Self:
        """Create an object from its configuration."""
        return cls(**keras.saving.deserialize_keras_object(config, custom_objects))


class ConfiguredValue(Configured):
    """A configured object whose representation is the call that creates it.

    Each argument must have an attribute, because a missing one would be lost in a saved file.
    """

    def get_config(self) -> Config:
        """Return the constructor's arguments."""
        names = inspect.signature(type(self)).parameters
        return {name: _plain(getattr(self, name)) for name in names}

    def __repr__(self) -> str:
        given = ", ".join(f"{name}={value!r}" for name, value in self.get_config().items())
        return f"{type(self).__name__}({given})"


def _plain(value: object) -> Any:
    """Return a value that Keras can write to a file."""
    if callable(value) or hasattr(value, "get_config"):
        return keras.saving.serialize_keras_object(value)
    return value
