"""Progress bars for what may take longer than a second."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

SECONDS_WITHOUT_A_BAR = 1.0


class Bar(Protocol):
    """What is told of progress."""

    def update(self, n: int) -> object:
        """So much more is done."""


class _Nobody:
    def update(self, n: int) -> None:
        """Tell nobody."""


@contextmanager
def progress(total: int, description: str, unit: str) -> Iterator[Bar]:
    """A bar on the terminal, if there is one and tqdm is installed."""
    try:
        from tqdm import tqdm
    except ModuleNotFoundError:
        yield _Nobody()
        return
    with tqdm(
        total=total,
        desc=description,
        unit=unit,
        delay=SECONDS_WITHOUT_A_BAR,
        disable=None,  # where the output is no terminal
        leave=False,
    ) as bar:
        yield bar
