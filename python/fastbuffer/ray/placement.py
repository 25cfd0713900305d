"""Which node has which shard, and starting an actor there.

Nodes have other names in each session of Ray, so shards are found again by looking at the nodes'
disks.
"""

from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import ray
from ray.exceptions import RayError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from fastbuffer._arguments import refused
from fastbuffer.ray import identity
from fastbuffer.ray.calls import GROUPS, Place, ShardUnavailableError
from fastbuffer.ray.identity import Found
from fastbuffer.ray.shard import Shard

#: What the nodes have: for each, its shards by number.
Disks = Mapping[str, Mapping[int, Found]]


def alive_nodes() -> dict[str, str]:
    """The address of each node that is alive, by its id.

    Raises:
        RuntimeError: There is no connection to Ray.
    """
    if not ray.is_initialized():
        raise RuntimeError(refused("ray", "a connection, as ray.init() makes one", "none"))
    alive = [node for node in ray.nodes() if node["Alive"]]
    return {node["NodeID"]: node["NodeManagerAddress"] for node in alive}


def disks(
    write_dir: str, nodes: Mapping[str, str], timeout_s: float
) -> dict[str, dict[int, Found]]:
    """The shards that each node has.

    Raises:
        ShardUnavailableError: A node does not answer.
        ValueError, OSError: A node's directory cannot be read.
    """
    look = ray.remote(num_cpus=0, max_retries=0)(identity.find)
    asked = {node: look.options(**_only_on(node)).remote(write_dir) for node in nodes}
    found = {}
    for node, answer in asked.items():
        try:
            found[node] = ray.get(answer, timeout=timeout_s)
        except ray.exceptions.RayTaskError as error:
            raise error.cause from None
        except RayError as error:
            where = f"node {node} ({nodes[node]})"
            raise ShardUnavailableError(f"{where}: expected its shards, got {error}") from error
    return found


def buffer_of(found: Disks, num_shards: int) -> str | None:
    """The name of the buffer that the shards are of; None if there is none yet.

    Raises:
        ValueError: They are of several buffers, there are more or fewer than `num_shards`, or one
            is on several disks.
    """
    identities = {
        entry.identity for shards in found.values() for entry in shards.values() if entry.identity
    }
    buffers = sorted({identity.buffer for identity in identities})
    if len(buffers) > 1:
        got = f"those of the buffers {', '.join(buffers)}"
        raise ValueError(refused("write_dir", "shards of one buffer on all nodes", got))
    others = {identity.num_shards for identity in identities} - {num_shards}
    if others:
        expected = f"{max(others)}, as the shards on the disks say"
        raise ValueError(refused("num_shards", expected, num_shards))
    for shard in range(num_shards):
        nodes = _having(found, shard)
        if len({found[node][shard].place for node in nodes if is_claimed(found, node, shard)}) > 1:
            got = f"one on each of the nodes {', '.join(nodes)}"
            raise ValueError(refused(f"shard {shard}", "one directory of it", got))
    return buffers[0] if buffers else None


def assigned(found: Disks, num_shards: int, is_new: bool) -> list[str]:
    """The node of each shard: one that has it, or for a new buffer any, in turns.

    Raises:
        ShardUnavailableError: No node has a shard.
    """
    load = Counter(dict.fromkeys(sorted(found), 0))
    chosen = []
    for shard in range(num_shards):
        nodes = _having(found, shard) or (sorted(found) if is_new else [])
        if not nodes:
            expected = f"its directory on one of the {len(found)} nodes that are alive"
            raise ShardUnavailableError(refused(f"shard {shard} of {num_shards}", expected, "none"))
        node = min(nodes, key=load.__getitem__)
        load[node] += 1
        chosen.append(node)
    return chosen


def is_claimed(found: Disks, node: str, shard: int) -> bool:
    """Whether a node has a shard's directory that says what it is."""
    return shard in found[node] and found[node][shard].identity is not None


def _having(found: Disks, shard: int) -> list[str]:
    """The nodes that have a shard, and only else those where making it was cut off."""
    claimed = [node for node in sorted(found) if is_claimed(found, node, shard)]
    return claimed or [node for node in sorted(found) if shard in found[node]]


def started(
    write_dir: str,
    node_ids: list[str],
    nodes: Mapping[str, str],
    make: Callable[[int, Path], tuple[Any, ...]],
) -> list[Place]:
    """Start the actors, each on its node for as long as that is there.

    Args:
        write_dir: The directory that shards are in.
        node_ids: The node of each shard.
        nodes: The nodes' addresses.
        make: The arguments of `Shard` for a number and a directory.
    """
    actor = ray.remote(num_cpus=0, max_restarts=-1, max_task_retries=0, concurrency_groups=GROUPS)(
        Shard
    )
    places = []
    for shard, node in enumerate(node_ids):
        directory = identity.directory_of(write_dir, shard)
        handle = actor.options(**_only_on(node)).remote(*make(shard, directory))
        places.append(Place(shard, node, nodes[node], directory, handle))
    return places


def here() -> str:
    """The id of the node that this process is on."""
    return str(ray.get_runtime_context().get_node_id())


def stopped(places: list[Place]) -> None:
    """End the actors for good."""
    for place in places:
        ray.kill(place.actor)


def _only_on(node: str) -> dict[str, Any]:
    # Hard: the data are on that node's disk, and nowhere else.
    return {"scheduling_strategy": NodeAffinitySchedulingStrategy(node, soft=False)}
