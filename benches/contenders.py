"""What fastbuffer is measured against besides the NumPy buffers of `fastbuffer.benchmark`."""

import warnings

import numpy as np

from fastbuffer.benchmark.workloads import EPISODE


def per_episode_weights(episode_index, drop_n_last_frames):
    """Uniform weights over all but the last frames of each episode, by one mask per episode."""
    weights = np.zeros(len(episode_index), np.float32)
    for episode in np.unique(episode_index):
        frames = np.flatnonzero(episode_index == episode)
        weights[frames[: len(frames) - drop_n_last_frames]] = 1
    return weights / weights.sum()


def torchrl_slices(directory, data, slices, steps):
    """A function that draws windows of consecutive frames with torchrl."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import torch
        from tensordict import TensorDict
        from torchrl.data import LazyMemmapStorage, TensorDictReplayBuffer
        from torchrl.data.replay_buffers.samplers import SliceSampler

        buffer = TensorDictReplayBuffer(
            storage=LazyMemmapStorage(len(data["index"]), scratch_dir=str(directory)),
            sampler=SliceSampler(slice_len=steps, traj_key="episode_index", cache_values=True),
            batch_size=slices * steps,
        )
        columns = {key: torch.from_numpy(value) for key, value in data.items()}
        buffer.extend(TensorDict(columns, batch_size=[len(data["index"])]))
    return buffer.sample


def cpprb_frames(data, batch):
    """A function that draws single frames with cpprb, from memory."""
    from cpprb import ReplayBuffer

    keys = {key.replace(".", "_"): value for key, value in data.items()}
    spec = {key: {"shape": v.shape[1:] or 1, "dtype": v.dtype} for key, v in keys.items()}
    buffer = ReplayBuffer(len(data["index"]), spec)
    buffer.add(**keys)
    return lambda: buffer.sample(batch)


def torchrl_priorities(priorities, batch):
    """Functions that draw by priority, and change priorities, with torchrl."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import torch
        from torchrl.data import LazyTensorStorage
        from torchrl.data.replay_buffers.samplers import PrioritizedSampler

        storage = LazyTensorStorage(len(priorities))
        everything = torch.arange(len(priorities))
        storage.set(everything, torch.zeros(len(priorities), 1))
        sampler = PrioritizedSampler(len(priorities), alpha=0.6, beta=0.4)
        sampler.extend(everything)

    def update(indices, priorities):
        sampler.update_priority(torch.from_numpy(indices), torch.from_numpy(priorities).float())

    update(everything.numpy(), priorities)
    return lambda: sampler.sample(storage, batch), update


def cpprb_priorities(priorities, batch):
    """Functions that draw by priority, and change priorities, with cpprb."""
    from cpprb import PrioritizedReplayBuffer

    buffer = PrioritizedReplayBuffer(len(priorities), {"x": {}}, alpha=0.6)
    buffer.add(x=np.zeros(len(priorities), np.float32), priorities=priorities)
    return lambda: buffer.sample(batch, 0.4), buffer.update_priorities


def synthetic_by_appending(path, schema, frames_per_shard=256):
    """A synthetic dataset with every image drawn from nothing and every episode appended."""
    import cv2
    import zarr
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    from fastbuffer._zarr import compressor
    from fastbuffer.synthetic.episodes import actions_of, draw, mode_counts, shuffled
    from fastbuffer.synthetic.schema import task_of

    task, size = task_of(schema), schema.image_size
    specs = schema.get_zarr_array_specs()
    root = zarr.create_group(path, overwrite=True)
    data = root.create_group("data")
    for key, spec in specs.items():
        is_image = len(spec["shape"]) == 4
        data.create_array(
            key,
            shape=spec["shape"],
            chunks=spec["chunks"],
            shards=(frames_per_shard, *spec["shape"][1:]) if is_image else None,
            dtype=spec["dtype"],
            compressors=[compressor()],
        )

    def pixels(positions):
        scaled = np.stack([positions[:, 0], 1 - positions[:, 1]], axis=1) * (size - 1)
        return np.clip(scaled, 0, size - 1).astype(np.int32)

    def images(positions):
        for t in range(len(positions)):
            image = np.full((size, size, 3), 240, np.uint8)
            for x0, y0, x1, y1 in task.obstacles:
                corners = pixels(np.array([(x0, y1), (x1, y0)])).tolist()
                cv2.rectangle(image, *corners, (80, 80, 80), -1)
            trail = pixels(positions[: t + 1])
            if t > 0:
                cv2.polylines(image, [trail], False, (180, 180, 180))
            cv2.circle(image, trail[t].tolist(), max(2, int(0.047 * size)), (66, 133, 244), -1)
            yield image

    rng = np.random.default_rng(schema.seed)
    counts = mode_counts(schema.num_episodes, task.num_modes, schema.mode_weights)
    drawn = list(draw(task, counts, schema.noise_std, rng))
    modes = np.repeat(np.arange(task.num_modes), counts)
    figure = Figure()
    axes = figure.add_subplot()
    ends = []
    for number in shuffled(schema.num_episodes, rng):
        positions, mode = drawn[number], modes[number]
        length = len(positions)
        data["agentview_rgb"].append(np.stack(list(images(positions))))
        data["synthetic_position"].append(positions)
        data["synthetic_position_action"].append(actions_of(positions))
        data["synthetic_context"].append(np.zeros((length, task.num_modes), np.float32))
        data["synthetic_mode_id"].append(np.full((length, 1), mode, np.uint8))
        axes.plot(*positions.T, color=f"C{mode}")
        ends.append((ends[-1] if ends else 0) + length)
    array = root.create_array("meta/episode_ends", shape=(len(ends),), dtype="int64")
    array[...] = ends
    FigureCanvasAgg(figure).print_png(str(path.with_suffix(".png")))


def lerobot_dataset(directory, deltas):
    """A dataset of LeRobot as its training reads it, with the decoder that needs nothing else."""
    from lerobot.datasets.lerobot_dataset import LeRobotDataset

    return LeRobotDataset("bench/some", directory, delta_timestamps=deltas, video_backend="pyav")


def record_lerobot_videos(directory, buffer, fps):
    """Write the frames of a buffer as LeRobot does by default: images as videos."""
    from lerobot.datasets.lerobot_dataset import LeRobotDataset

    image, action = "agentview_rgb", "synthetic_position_action"
    names = ["height", "width", "channels"]
    features = {
        image: {"dtype": "video", "shape": buffer[0][image].shape, "names": names},
        action: {"dtype": "float32", "shape": (2,), "names": None},
    }
    dataset = LeRobotDataset.create("bench/some", fps, features, root=directory)
    for i in range(len(buffer)):
        item = buffer[i]
        dataset.add_frame({key: np.asarray(item[key]) for key in features} | {"task": "none"})
        if item["frame_index"] == EPISODE - 1:
            dataset.save_episode()
    dataset.finalize()
