"""Imports of packages that fastbuffer can do without until one of its features needs them."""

from importlib import import_module
from types import ModuleType


def require(module: str, *, extra: str, purpose: str) -> ModuleType:
    """Import an optional package, or say which extra brings it.

    Args:
        module: Name of the module to import.
        extra: The extra of fastbuffer that installs it.
        purpose: What needs it; begins the message.

    Raises:
        ImportError: The module, or one that it imports, is not installed.
    """
    try:
        return import_module(module)
    except ModuleNotFoundError as error:
        missing = (error.name or module).partition(".")[0]
        raise ImportError(
            f"{purpose} needs the package '{missing}': pip install 'fastbuffer[{extra}]'",
            name=missing,
        ) from error
