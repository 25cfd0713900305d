"""A buffer over many machines: one `OnlineBuffer` per Ray actor, on the disk of its node."""

from fastbuffer._optional import require

require("ray", extra="ray", purpose="fastbuffer.ray")

from fastbuffer.ray.calls import ShardUnavailableError  # noqa: E402
from fastbuffer.ray.sharded_buffer import ShardedBuffer  # noqa: E402

__all__ = ["ShardUnavailableError", "ShardedBuffer"]
