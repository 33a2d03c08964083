"""Objects whose configuration is the arguments of their constructor."""

import inspect
from typing import Self

from keras_dml._common.types import Config

__all__ = ["Configured"]


class Configured:
    """An object whose attributes have the names of its constructor's arguments.

    Override `get_config` and `from_config` for an argument that is an object.
    """

    def get_config(self) -> Config:
        """Return the constructor's arguments."""
        return {name: getattr(self, name) for name in inspect.signature(type(self)).parameters}

    @classmethod
    def from_config(cls, config: Config) -> Self:
        """Create an object from its configuration."""
        return cls(**config)

    def __repr__(self) -> str:
        given = ", ".join(f"{name}={value!r}" for name, value in self.get_config().items())
        return f"{type(self).__name__}({given})"
