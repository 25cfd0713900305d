"""Building something beside its place, and putting it there once it is complete.

Whatever ends the process meanwhile, what was in the place stays as it was. What a killed process
left is removed by the next one that builds for the same place.
"""

import contextlib
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from fastbuffer._arguments import refused
from fastbuffer._core import HeldDirectory, exchange_paths

_LOCK = "_lock"
_STORE_MARKS = ("zarr.json", ".zgroup", ".zarray")


@contextmanager
def staging(target: Path) -> Iterator[Path]:
    """A directory beside `target`, empty at first and gone at the end.

    Raises:
        BufferLockedError: Another process is building for the same target.
        FileExistsError: The directory's name is taken by something else.
        OSError: The directory cannot be made.
    """
    directory = target.with_name(f".{target.name}.building")
    found = _names_in(directory)
    if found and _LOCK not in found:
        expected = f"a place to build in at {directory}"
        raise FileExistsError(refused("path", expected, "a directory of something else"))
    if os.path.ismount(target):
        raise FileExistsError(refused("path", "a place that can be replaced", f"a mount, {target}"))
    missing = [parent for parent in target.parents if not parent.exists()]
    held = HeldDirectory(directory)
    try:
        _clear(directory)
        yield directory
    finally:
        with contextlib.suppress(OSError):  # what is left is removed by the next one
            _clear(directory)
            (directory / _LOCK).unlink()  # last: without it others take what is there for theirs
            directory.rmdir()
        held.release()
        with contextlib.suppress(OSError):  # something is in it, as it should
            for parent in missing:
                parent.rmdir()


def replace_store(built: Path, target: Path) -> None:
    """Move `built`, complete, to `target`, in the place of a store that is there.

    Raises:
        FileExistsError: Something else has come there meanwhile.
    """
    check_replaceable(target, "path")
    if os.path.lexists(target):
        exchange_paths(built, target)
    else:
        built.rename(target)


def check_replaceable(target: Path, name: str) -> None:
    """Refuse to replace anything but a Zarr store.

    Raises:
        FileExistsError: Something else is there.
    """
    if not target.exists() or any((target / mark).is_file() for mark in _STORE_MARKS):
        return
    if target.is_dir() and not any(target.iterdir()):
        return
    raise FileExistsError(refused(name, "nothing, or a Zarr store to replace", target))


def _names_in(directory: Path) -> set[str]:
    try:
        return {entry.name for entry in directory.iterdir()}
    except FileNotFoundError:
        return set()


def _clear(directory: Path) -> None:
    for left in directory.iterdir():
        if left.name != _LOCK:
            _remove(left)


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink()
