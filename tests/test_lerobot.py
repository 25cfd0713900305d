"""LeRobot datasets come in and go out with every value, window and mask as LeRobot has them."""

import numpy as np
import pytest

from fastbuffer import OnlineBuffer

pytest.importorskip("lerobot")
torch = pytest.importorskip("torch")

from lerobot.datasets.factory import resolve_delta_timestamps  # noqa: E402
from lerobot.datasets.lerobot_dataset import (  # noqa: E402
    LeRobotDataset,
    LeRobotDatasetMetadata,
)
from lerobot.policies.factory import (  # noqa: E402
    make_policy,
    make_policy_config,
    make_pre_post_processors,
)

from fastbuffer.io.lerobot import as_lerobot  # noqa: E402

# The packages that lerobot brings warn of each other.
pytestmark = pytest.mark.filterwarnings("default")

FPS = 10
LENGTHS = (12, 7, 1, 20)
FEATURES = {
    "observation.image": {
        "dtype": "image",
        "shape": (8, 6, 3),
        "names": ["height", "width", "channels"],
    },
    "observation.state": {"dtype": "float32", "shape": (4,), "names": None},
    "action": {"dtype": "float64", "shape": (2,), "names": None},
    "next.reward": {"dtype": "float32", "shape": (1,), "names": None},
    "next.done": {"dtype": "bool", "shape": (1,), "names": None},
    "gripper": {"dtype": "int32", "shape": (1,), "names": None},
}
DELTAS = {
    "observation.image": [-0.1, 0.0],
    "observation.state": [-0.3, -0.1, 0.0],
    "action": [0.0, 0.1, 0.2, 0.3, 0.4],
    "next.done": [0.0, 0.5],
}
TASKS = ["reach", "push"]


def frame_of(rng, feature):
    dtype, shape = feature["dtype"], feature["shape"]
    if dtype in ("image", "video"):
        return rng.integers(0, 256, shape, dtype=np.uint8)
    return (rng.normal(size=shape) * 100).astype(dtype)


def record(root, features, lengths=LENGTHS, **arguments):
    """A dataset of random frames, in episodes of two tasks."""
    rng = np.random.default_rng(0)
    dataset = LeRobotDataset.create("someone/some", FPS, features, root=root, **arguments)
    for number, length in enumerate(lengths):
        for _ in range(length):
            frame = {key: frame_of(rng, feature) for key, feature in features.items()}
            dataset.add_frame(frame | {"task": TASKS[number % 2]})
        dataset.save_episode()
    dataset.finalize()


def in_h264():
    """Arguments of `LeRobotDataset.create`: of its codecs, the one that every decoder knows."""
    try:
        from lerobot.configs.video import RGBEncoderConfig
    except ImportError:  # before LeRobot 0.6
        return {"vcodec": "h264"}
    return {"rgb_encoder": RGBEncoderConfig(vcodec="h264")}


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    root = tmp_path_factory.mktemp("lerobot") / "dataset"
    record(root, FEATURES, use_videos=False)
    return root


def assert_same_items(buffer, dataset):
    """Every item, in all that buffers have."""
    assert len(buffer) == len(dataset)
    first, first_episode = dataset[0]["index"], dataset[0]["episode_index"]
    for i in range(len(dataset)):
        ours, theirs = as_lerobot(buffer[i]), dataset[i]
        assert theirs.pop("task") in TASKS
        if dataset.episodes is None:
            theirs["index"] -= first
            theirs["episode_index"] -= first_episode
        else:  # numbered anew
            for key in ("index", "episode_index"):
                theirs.pop(key), ours.pop(key)
        assert ours.keys() == theirs.keys()
        for key, value in theirs.items():
            assert ours[key].dtype == value.dtype, key
            assert torch.equal(ours[key], value), key


@pytest.mark.parametrize("episodes", [None, [1], [3, 0], [2]], ids=str)
def test_every_item_is_that_of_the_dataset(tmp_path, root, episodes):
    dataset = LeRobotDataset("some/one", root, episodes=episodes, delta_timestamps=DELTAS)
    buffer = OnlineBuffer.from_lerobot_dataset(dataset, tmp_path / "b")
    assert buffer.num_episodes == dataset.num_episodes
    assert_same_items(buffer, dataset)


def test_every_item_without_windows_is_that_of_the_dataset(tmp_path, root):
    dataset = LeRobotDataset("some/one", root)
    assert_same_items(OnlineBuffer.from_lerobot_dataset(dataset, tmp_path / "b"), dataset)


def test_values_of_two_dimensions_keep_them(tmp_path):
    # In a dataset of their own: LeRobot cannot save those of an episode with one frame.
    record(tmp_path / "d", {"grid": {"dtype": "float32", "shape": (2, 3), "names": None}}, (5, 4))
    dataset = LeRobotDataset("some/one", tmp_path / "d", delta_timestamps={"grid": [-0.1, 0.1]})
    assert_same_items(OnlineBuffer.from_lerobot_dataset(dataset, tmp_path / "b"), dataset)


def test_what_is_stored_of_an_image_is_bytes(tmp_path, root):
    dataset = LeRobotDataset("some/one", root)
    buffer = OnlineBuffer.from_lerobot_dataset(dataset, tmp_path / "b", output="numpy")
    assert buffer[0]["observation.image"].dtype == np.uint8
    assert buffer[0]["observation.image"].shape == (8, 6, 3)


def test_batches_are_converted_like_items(tmp_path, root):
    dataset = LeRobotDataset("some/one", root, delta_timestamps=DELTAS)
    buffer = OnlineBuffer.from_lerobot_dataset(dataset, tmp_path / "b")
    batch = as_lerobot(buffer[[3, 18]])
    for key, value in batch.items():
        assert torch.equal(value[1], as_lerobot(buffer[18])[key]), key


def test_videos_are_the_frames_that_lerobot_decodes(tmp_path):
    feature = {"dtype": "video", "shape": (64, 64, 3), "names": ["height", "width", "channels"]}
    record(tmp_path / "d", {"observation.video": feature}, (40, 9), **in_h264())
    deltas = {"observation.video": [-0.1, 0.0]}
    dataset = LeRobotDataset(
        "some/one",
        tmp_path / "d",
        delta_timestamps=deltas,
        video_backend="pyav",  # the other one needs an FFmpeg of the system
    )
    assert_same_items(OnlineBuffer.from_lerobot_dataset(dataset, tmp_path / "b"), dataset)


def test_keys_capacity_and_size_are_those_asked_for(tmp_path, root):
    import cv2

    dataset = LeRobotDataset("some/one", root, delta_timestamps=DELTAS)
    buffer = OnlineBuffer.from_lerobot_dataset(
        dataset,
        tmp_path / "b",
        buffer_capacity=25,
        keys=["observation.image"],
        image_size=(4, 3),
        output="numpy",
    )
    assert buffer.buffer_capacity == len(buffer) == 25
    assert set(buffer.data_keys) == {
        "observation.image",
        "index",
        "episode_index",
        "frame_index",
        "timestamp",
    }
    assert set(buffer.delta_timestamps) == {"observation.image"}
    last = dataset[len(dataset) - 1]["observation.image"][1]
    whole = (last * 255).round().byte().permute(1, 2, 0).numpy()
    newest = buffer.get_data_by_key("index").argmax()
    expected = cv2.resize(whole, (3, 4), interpolation=cv2.INTER_AREA)
    np.testing.assert_array_equal(buffer[int(newest)]["observation.image"][1], expected)


@pytest.mark.parametrize("episodes", [None, [0, 3]], ids=str)
def test_there_and_back_is_the_same(tmp_path, root, episodes):
    dataset = LeRobotDataset("some/one", root, episodes=episodes)
    buffer = OnlineBuffer.from_lerobot_dataset(dataset, tmp_path / "b")
    again = buffer.to_lerobot_dataset("some/other", tmp_path / "again", task=TASKS)
    assert again.num_episodes == dataset.num_episodes
    assert again.fps == FPS
    for i in range(len(dataset)):
        ours, theirs = again[i], dataset[i]
        assert ours.keys() == theirs.keys()
        for key in theirs.keys() - {"index", "episode_index", "task_index"}:
            same = ours[key] == theirs[key]
            assert same if isinstance(same, bool) else same.all(), key
    assert [path.name for path in tmp_path.iterdir() if path.name[0] == "."] == []


def test_a_wrapped_buffer_is_exported_in_order(tmp_path):
    spec = {"a": {"shape": (), "dtype": np.int64}}
    buffer = OnlineBuffer(tmp_path / "b", spec, 10, FPS)
    for start, length in ((0, 6), (6, 5), (11, 3)):
        for i in range(length):
            buffer.add_frame({"a": start + i})
        buffer.save_episode()
    dataset = buffer.to_lerobot_dataset("some/one", tmp_path / "d", task="count")
    assert [dataset[i]["a"].item() for i in range(len(dataset))] == list(range(4, 14))
    assert [dataset[i]["frame_index"].item() for i in range(3)] == [0, 1, 0]
    assert {dataset[i]["task"] for i in range(10)} == {"count"}


@pytest.mark.parametrize(
    ("arguments", "error", "says"),
    [
        ({"keys": "action"}, TypeError, "keys: expected a list of str"),
        ({"keys": ["nothing"]}, ValueError, "keys: expected some of"),
        ({"image_size": 0}, ValueError, "image_size"),
        ({"image_size": (1, 2, 3)}, ValueError, "image_size"),
        ({"buffer_capacity": 0}, ValueError, "buffer_capacity"),
        ({"delta_timestamps": {"nothing": [0.0]}}, ValueError, "nothing"),
    ],
    ids=str,
)
def test_bad_arguments_are_refused_and_leave_nothing(tmp_path, root, arguments, error, says):
    dataset = LeRobotDataset("some/one", root)
    with pytest.raises(error, match=says):
        OnlineBuffer.from_lerobot_dataset(dataset, tmp_path / "b", **arguments)
    assert list(tmp_path.iterdir()) == []


def test_other_things_than_datasets_are_refused(tmp_path):
    with pytest.raises(TypeError, match="dataset: expected a LeRobotDataset"):
        OnlineBuffer.from_lerobot_dataset([1, 2], tmp_path / "b")


@pytest.mark.skipif(not hasattr(LeRobotDatasetMetadata, "depth_keys"), reason="since LeRobot 0.6")
def test_depth_maps_are_refused(tmp_path):
    feature = {"dtype": "image", "shape": (8, 8, 1), "names": ["height", "width", "channels"]}
    features = {"depth": feature | {"info": {"is_depth_map": True}}}
    dataset = LeRobotDataset.create(
        "some/one", FPS, features, root=tmp_path / "d", use_videos=False
    )
    dataset.add_frame({"depth": np.full((8, 8, 1), 1000, np.uint16), "task": "reach"})
    dataset.save_episode()
    dataset.finalize()
    dataset = LeRobotDataset("some/one", tmp_path / "d")
    with pytest.raises(ValueError, match=r"'depth': .* leave it out with keys=, got a depth map"):
        OnlineBuffer.from_lerobot_dataset(dataset, tmp_path / "b")
    assert not (tmp_path / "b").exists()


def buffer_with(directory, dtype, fps=FPS, times=(0.0, 0.1)):
    buffer = OnlineBuffer(directory, {"a": {"shape": (), "dtype": dtype}}, 10, fps)
    for time in times:
        buffer.add_frame({"a": 1, "timestamp": time})
    if times:
        buffer.save_episode()
    return buffer


@pytest.mark.parametrize(
    ("arguments", "task", "error", "says"),
    [
        ({"times": ()}, "t", ValueError, "at least one live frame"),
        ({"fps": 9.5}, "t", ValueError, "fps of the buffer: expected a whole number"),
        ({"dtype": np.complex64}, "t", ValueError, "key 'a'"),
        ({"times": (0.0, 0.15)}, "t", ValueError, "timestamp: expected frames every 1/10 s"),
        ({}, 5, TypeError, "task: expected a str"),
        ({}, ["t"], ValueError, "there is no task_index"),
    ],
    ids=str,
)
def test_what_lerobot_does_not_have_is_refused(tmp_path, arguments, task, error, says):
    buffer = buffer_with(tmp_path / "b", **({"dtype": np.float32} | arguments))
    with pytest.raises(error, match=says):
        buffer.to_lerobot_dataset("some/one", tmp_path / "d", task=task)
    assert [path.name for path in tmp_path.iterdir()] == ["b"]


@pytest.mark.parametrize(
    ("repo_id", "root", "error", "says"),
    [
        (5, "d", TypeError, "repo_id: expected a str, got int 5"),
        ("some/one", "b", FileExistsError, "root: expected nothing, or an empty directory"),
        ("some/one", 5, TypeError, "root: expected a path, got int 5"),
    ],
)
def test_where_a_dataset_cannot_go_is_refused(tmp_path, monkeypatch, repo_id, root, error, says):
    monkeypatch.chdir(tmp_path)
    buffer = buffer_with("b", np.float32)
    with pytest.raises(error, match=says):
        buffer.to_lerobot_dataset(repo_id, root, task="t")
    assert [path.name for path in tmp_path.iterdir()] == ["b"]


#: Small enough for some steps on a CPU.
POLICIES = {
    "act": {
        "chunk_size": 4,
        "n_action_steps": 4,
        "dim_model": 32,
        "n_heads": 2,
        "dim_feedforward": 64,
        "n_encoder_layers": 1,
        "n_vae_encoder_layers": 1,
        "latent_dim": 4,
        "pretrained_backbone_weights": None,
    },
    "diffusion": {
        "horizon": 8,
        "n_action_steps": 4,
        "down_dims": (16, 32),
        "diffusion_step_embed_dim": 16,
        "n_groups": 4,
        "spatial_softmax_num_keypoints": 4,
        "use_group_norm": True,
        "pretrained_backbone_weights": None,
    },
}


@pytest.mark.parametrize("kind", POLICIES)
@pytest.mark.parametrize("num_workers", [0, 1])
def test_a_policy_learns_from_a_loader_what_it_learns_from_the_dataset(
    tmp_path, root, kind, num_workers
):
    if kind == "diffusion":
        pytest.importorskip("diffusers", reason="LeRobot's extra `diffusion` is not installed")
    config = make_policy_config(kind, device="cpu", push_to_hub=False, **POLICIES[kind])
    metadata = LeRobotDatasetMetadata("some/one", root)
    deltas = resolve_delta_timestamps(config, metadata)
    dataset = LeRobotDataset("some/one", root, delta_timestamps=deltas)
    buffer = OnlineBuffer.from_lerobot_dataset(dataset, tmp_path / "b")
    order = torch.randperm(len(dataset)).tolist()

    def losses(loader, convert):
        torch.manual_seed(0)
        policy = make_policy(config, ds_meta=metadata)
        preprocess, _ = make_pre_post_processors(config, dataset_stats=metadata.stats)
        optimizer = config.get_optimizer_preset().build(policy.get_optim_params())
        policy.train()
        for batch in loader:
            loss, _ = policy.forward(preprocess(convert(batch)))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            yield loss.item()

    theirs = torch.utils.data.DataLoader(dataset, 8, sampler=order)
    ours = buffer.loader(8, sampler=order, num_workers=num_workers)
    found = list(losses(ours, as_lerobot))
    assert found == list(losses(theirs, dict))
    assert len(found) == 5
    assert len(set(found)) == 5
