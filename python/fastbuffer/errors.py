"""Exceptions of the package's own. All others are Python's built-in ones."""


class TimestampToleranceError(ValueError, AssertionError):
    """A query inside an episode's time range has no frame within the tolerance.

    The episode's timestamps do not match the buffer's rate. The message names the episode, the
    query and the distance to the nearest frame.
    """


class BufferLockedError(OSError):
    """Another process is writing the directory.

    The message names the process that holds the lock.
    """
