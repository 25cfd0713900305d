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

from fastbuffer._core import HeldDirectory, exchange_paths

_LOCK = "_lock"


@contextmanager
def staging(target: Path) -> Iterator[Path]:
    """A directory beside `target`, empty at first and gone at the end.

    Raises:
        BufferLockedError: Another process is building for the same target.
        OSError: The directory cannot be made.
    """
    directory = target.with_name(f".{target.name}.building")
    missing = [parent for parent in target.parents if not parent.exists()]
    held = HeldDirectory(directory)
    try:
        for left in directory.iterdir():
            if left.name != _LOCK:
                _remove(left)
        yield directory
    finally:
        shutil.rmtree(directory, ignore_errors=True)
        held.release()
        with contextlib.suppress(OSError):  # something is in it, as it should
            for parent in missing:
                parent.rmdir()


def put_in_place(built: Path, target: Path) -> None:
    """Move `built`, complete, to `target`, in the place of what is there."""
    if os.path.lexists(target):
        exchange_paths(built, target)
        _remove(built)
    else:
        built.rename(target)


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink()
