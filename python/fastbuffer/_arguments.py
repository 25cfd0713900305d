"""Checks of arguments, each with a message that says what was expected and what came."""

import operator
import os
from collections.abc import Mapping, Sequence
from numbers import Real
from typing import Any, TypedDict

import numpy as np
from numpy.typing import DTypeLike, NDArray

Field = tuple[str, str, list[int]]
DeltaTimestamps = Mapping[str, Sequence[float] | NDArray[np.floating[Any]]]


#: Per key: far more than windows have, and few enough that nobody waits for them.
MOST_DELTAS = 2**16


class FieldSpec(TypedDict):
    """One entry of a `data_spec`: shape and dtype of one frame's value."""

    shape: tuple[int, ...]
    dtype: DTypeLike


DataSpec = Mapping[str, FieldSpec]


def refused(name: str, expected: str, got: object) -> str:
    """The message for a refused argument."""
    return f"{name}: expected {expected}, got {got}"


def path(value: object, name: str) -> str:
    """The value as a path of str.

    Raises:
        TypeError: It is no path.
        ValueError: It is empty or has a NUL.
    """
    if not isinstance(value, str | bytes | os.PathLike):
        raise TypeError(refused(name, "a path", describe(value)))
    text = os.fsdecode(value)
    if not text or "\0" in text:
        raise ValueError(refused(name, "a path that is not empty and has no NUL", repr(text)))
    try:
        os.fsencode(text)
    except UnicodeEncodeError:
        raise ValueError(refused(name, "a path that the system can have", ascii(text))) from None
    return text


def key(value: object, name: str) -> str:
    """The value as a key.

    Raises:
        TypeError: It is no str.
        ValueError: It is no valid Unicode.
    """
    if not isinstance(value, str):
        raise TypeError(refused(name, "a str", describe(value)))
    try:
        value.encode()
    except UnicodeEncodeError:
        raise ValueError(refused(name, "valid Unicode", ascii(value))) from None
    return value


def integer(value: object, name: str, *, at_least: int, at_most: int = 2**63 - 1) -> int:
    """The value as an int.

    Raises:
        TypeError: It is no integer; a bool is none.
        ValueError: It is out of range.
    """
    try:
        if isinstance(value, bool | np.bool_):
            raise TypeError
        number = operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        raise TypeError(refused(name, "an int", describe(value))) from None
    if not at_least <= number <= at_most:
        raise ValueError(refused(name, f"at least {at_least} and at most {at_most}", number))
    return number


def boolean(value: object, name: str) -> bool:
    """The value as a bool.

    Raises:
        TypeError: It is none.
    """
    if not isinstance(value, bool | np.bool_):
        raise TypeError(refused(name, "a bool", describe(value)))
    return bool(value)


def choice(value: object, name: str, *choices: str) -> str:
    """The value, which is one of the choices.

    Raises:
        ValueError: It is none of them.
    """
    if not isinstance(value, str) or value not in choices:
        expected = " or ".join(f'"{one}"' for one in choices)
        raise ValueError(refused(name, expected, repr(value)))
    return value


def real(value: object, name: str) -> float:
    """The value as a float.

    Raises:
        TypeError: It is no real number; a bool is none.
        ValueError: It is too large for a float.
    """
    if isinstance(value, bool | np.bool_) or not isinstance(value, Real):
        raise TypeError(refused(name, "a number", describe(value)))
    try:
        return float(value)
    except OverflowError:
        raise ValueError(refused(name, "a number that fits a float", value)) from None


def at_least_zero(value: object, name: str) -> float:
    """The value as a float that is not negative and not NaN; infinity is allowed.

    Raises:
        TypeError: It is no real number.
        ValueError: It is negative or NaN.
    """
    number = real(value, name)
    if not number >= 0:
        raise ValueError(refused(name, "at least 0", number))
    return number


def describe(value: object) -> str:
    """The value and its type, short."""
    text = repr(value)
    return f"{type(value).__name__} {text if len(text) <= 80 else text[:77] + '...'}"


def fields(data_spec: object) -> list[Field]:
    """Keys, dtype names and shapes of a `data_spec`. Other facts about a key are ignored.

    Raises:
        TypeError: A part has the wrong type.
        ValueError: A dtype is not supported or a dimension is negative.
    """
    if not isinstance(data_spec, Mapping):
        raise TypeError(refused("data_spec", "a dict", describe(data_spec)))
    return [_field(name, entry) for name, entry in data_spec.items()]


def _field(name_of_field: object, entry: object) -> Field:
    text = key(name_of_field, "a key of data_spec")
    name = f"data_spec[{text!r}]"
    if not isinstance(entry, Mapping):
        raise TypeError(refused(name, 'a dict with "shape" and "dtype"', describe(entry)))
    if not {"shape", "dtype"} <= set(entry):
        raise ValueError(refused(name, 'the keys "shape" and "dtype"', list(entry)))
    return text, _dtype_name(entry["dtype"], name), _shape(entry["shape"], name)


def _dtype_name(value: object, name: str) -> str:
    try:
        if value is None:
            raise TypeError  # NumPy would take it for float64
        dtype = np.dtype(value)  # type: ignore[call-overload]
    except (TypeError, ValueError):
        raise ValueError(refused(f'{name}["dtype"]', "a NumPy dtype", describe(value))) from None
    if not dtype.isnative:
        raise ValueError(refused(f'{name}["dtype"]', "little-endian, as on disk", dtype.str))
    return str(dtype)


def _shape(value: object, name: str) -> list[int]:
    name = f'{name}["shape"]'
    if (
        not isinstance(value, Sequence | np.ndarray)
        or isinstance(value, str | bytes)
        or getattr(value, "ndim", 1) != 1
    ):
        raise TypeError(refused(name, "a tuple of int", describe(value)))
    shape = [integer(dim, name, at_least=-(2**63)) for dim in value]
    if any(dim < 1 for dim in shape):
        raise ValueError(refused(name, "dimensions of at least 1", tuple(shape)))
    return shape


def deltas(delta_timestamps: object) -> dict[str, NDArray[np.float64]]:
    """The deltas of each key as a read-only array, in seconds.

    Raises:
        TypeError: A part has the wrong type.
        ValueError: The deltas of a key are not one-dimensional.
    """
    if not isinstance(delta_timestamps, Mapping):
        raise TypeError(refused("delta_timestamps", "a dict", describe(delta_timestamps)))
    return {
        key(name, "a key of delta_timestamps"): _deltas(name, value)
        for name, value in delta_timestamps.items()
    }


def _deltas(key: str, value: object) -> NDArray[np.float64]:
    name = f"delta_timestamps[{key!r}]"
    try:
        array = np.array(value)
    except (TypeError, ValueError, RuntimeError):
        array = np.array(None)
    if array.size > MOST_DELTAS:
        raise ValueError(refused(name, f"at most {MOST_DELTAS} seconds", array.size))
    if array.ndim != 1:
        raise ValueError(refused(name, "a one-dimensional list of seconds", describe(value)))
    is_number = array.dtype.kind != "b" and np.can_cast(array.dtype, np.float64, "same_kind")
    if array.size and not is_number:
        raise TypeError(refused(name, "numbers", describe(value)))
    result = array.astype(np.float64)
    result.flags.writeable = False
    return result
