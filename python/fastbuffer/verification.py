"""Checking a buffer's files against each other, and repairing them."""

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from fastbuffer import _arguments
from fastbuffer._core import repair_directory, verify_directory
from fastbuffer._progress import progress


@dataclass(frozen=True)
class Finding:
    """Something that is wrong with a file, or what was done about it."""

    file: Path
    problem: str

    def __str__(self) -> str:
        """The file and the problem."""
        return f"{self.file}: {self.problem}"


def verify(write_dir: str | os.PathLike[str]) -> list[Finding]:
    """Check a buffer's manifest, checksums, file lengths, index columns, episodes and counters.

    Nothing is changed, and another process may insert meanwhile. The values of data columns have
    no checksum, so a change of them is not found.

    Args:
        write_dir: The buffer's directory.

    Returns:
        What is wrong; nothing if the buffer is sound.

    Raises:
        FileNotFoundError: The directory holds no buffer.
        OSError: It cannot be read.
        RuntimeError: It was changed all the time.
    """
    return _with_a_bar(verify_directory, write_dir)


def repair(write_dir: str | os.PathLike[str]) -> list[Finding]:
    """Rebuild what the columns of a damaged buffer determine.

    Files get their lengths and the bookkeeping is written anew. Frames that are lost or that cannot
    follow one another are dropped: the longest run of consecutive frames stays. Buffers that are
    open must be opened anew.

    Args:
        write_dir: The buffer's directory.

    Returns:
        What was done; nothing if the buffer was sound.

    Raises:
        FileNotFoundError: The directory holds no buffer.
        ValueError: What is damaged or missing, such as the manifest or a column, cannot be rebuilt.
        BufferLockedError: A process is writing the directory.
        OSError: It cannot be read or written.
    """
    return _with_a_bar(repair_directory, write_dir)


def _with_a_bar(
    check: Callable[[str, Callable[[int, int], None]], list[tuple[Path, str]]],
    write_dir: str | os.PathLike[str],
) -> list[Finding]:
    path = _arguments.path(write_dir, "write_dir")
    with progress(100, "checking", "%") as bar:
        shown = 0

        def show(checked: int, of: int) -> None:
            nonlocal shown
            percent = 100 * checked // max(of, 1)
            if percent > shown:  # it starts anew when a writer changes what was checked
                bar.update(percent - shown)
                shown = percent

        return [Finding(*finding) for finding in check(path, show)]
