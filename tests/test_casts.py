"""What add_data casts, from whatever memory, is what NumPy's `astype` makes of it."""

import numpy as np
import pytest

from fastbuffer import OnlineBuffer
from helpers import DTYPES, make_episodes, random_values, snapshot

SHAPE = (3, 2)
FRAMES = 50
SOURCES = [*DTYPES, *(f">{np.dtype(name).str[1:]}" for name in DTYPES), "longdouble", "clongdouble"]
LAYOUTS = {
    "in order": lambda a: a,
    "Fortran order": np.asfortranarray,
    "every second": lambda a: np.repeat(a, 2, axis=2)[..., ::2],
    "backwards": lambda a: a[::-1, ::-1, ::-1].copy()[::-1, ::-1, ::-1],
    "transposed": lambda a: a.transpose(2, 0, 1).copy().transpose(1, 2, 0),
    "unaligned": lambda a: np.frombuffer(b"x" + a.tobytes(), a.dtype, offset=1).reshape(a.shape),
    "broadcast": lambda a: np.broadcast_to(a[:1, :1], a.shape),
}


def edge_cases(dtype):
    """Values where rounding, range and sign matter, as far as the dtype has them."""
    kind = np.dtype(dtype).kind
    if kind == "b":
        return [False, True]
    if kind in "iu":
        limits = np.iinfo(dtype)
        wanted = [0, 1, -1, 255, 2049, 65519, 65520, 2**24 + 1, 2**53 + 1, 2**62 + 2**38]
        return [limits.min, limits.max, *(v for v in wanted if limits.min <= v <= limits.max)]
    ties = [1 + 2**-11, 1 + 3 * 2**-11, 1 + 2**-24, 2**-25, 65519.999, 65520, 3.4028236e38]
    values = [*ties, 0.0, -0.0, 2**-149, 1e-310, np.inf, -np.inf, np.nan, 1 + 2**-11 + 2**-40]
    with np.errstate(over="ignore"):
        return np.array([*values, *(-v for v in values)]).astype(dtype)


def values_of(dtype, rng):
    """Edge cases, then any bit patterns. Without signalling NaNs, whose bits no cast keeps."""
    native = np.dtype(dtype).newbyteorder("=")
    simple = native if native.kind != "c" or native.itemsize <= 16 else np.dtype("complex128")
    simple = np.dtype("float64") if native == np.longdouble else simple
    values = random_values(rng, (FRAMES, *SHAPE), simple)
    if simple.kind in "fc":
        values[np.isnan(values)] = np.nan
    edges = np.array(edge_cases(native), native)
    values = values.astype(native)
    values.reshape(-1)[: len(edges)] = edges
    return values.astype(dtype)


def same_values(actual, expected):
    """Bit for bit, except that any NaN is one."""
    if expected.dtype.kind == "c":
        return same_values(actual.real, expected.real) and same_values(actual.imag, expected.imag)
    if expected.dtype.kind != "f":
        return np.array_equal(actual, expected)
    nan = np.isnan(expected)
    signs = np.array_equal(np.signbit(actual[~nan]), np.signbit(expected[~nan]))
    return np.array_equal(actual, expected, equal_nan=True) and signs


@pytest.mark.parametrize("target", DTYPES)
def test_every_allowed_cast_gives_numpys_values_and_others_are_refused(tmp_path, target):
    rng = np.random.default_rng(0)
    spec = {"x": {"shape": SHAPE, "dtype": target}}
    buffer = OnlineBuffer(tmp_path, spec, FRAMES, output="numpy")
    for source in SOURCES:
        data = make_episodes([FRAMES], {}, rng) | {"x": values_of(source, rng)}
        if not np.can_cast(source, target, "same_kind"):
            before = snapshot(tmp_path)
            with pytest.raises(ValueError, match=rf"data\[\"x\"\]: expected .*{target}.*, got "):
                buffer.add_data(data)
            assert snapshot(tmp_path) == before
            continue
        with np.errstate(all="ignore"):
            expected = data["x"].astype(target)
            buffer.add_data(data)  # NumPy casts what the core does not know, and may warn
        assert same_values(buffer.get_data_by_key("x"), expected), source


@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS)
@pytest.mark.parametrize("source", ["int16", ">i2", "float32", "float64", ">c8", "bool", "uint8"])
@pytest.mark.parametrize("target", ["int64", "float32", "complex64"])
def test_any_memory_layout_is_read_in_order(tmp_path, layout, source, target):
    if not np.can_cast(source, target, "same_kind"):
        target = source.replace(">c8", "complex64")
    rng = np.random.default_rng(1)
    spec = {"x": {"shape": SHAPE, "dtype": target}}
    buffer = OnlineBuffer(tmp_path, spec, 70, output="numpy")  # the second insert wraps
    for _ in range(2):
        x = layout(values_of(source, rng))
        with np.errstate(all="ignore"):
            expected = x.astype(target)
        buffer.add_data(make_episodes([FRAMES], {}, rng) | {"x": x})
    last = buffer.get_data_by_key("index") >= FRAMES
    order = np.argsort(buffer.get_data_by_key("index")[last])
    assert same_values(buffer.get_data_by_key("x")[last][order], expected)


def test_numbers_and_times_are_cast_too(tmp_path):
    buffer = OnlineBuffer(tmp_path, {}, 100, output="numpy")
    for number, dtype in enumerate(["int8", ">i4", "uint64", "bool"]):
        data = make_episodes([2], {}, np.random.default_rng(0))
        data |= {key: data[key].astype(dtype) for key in ("index", "episode_index", "frame_index")}
        data["timestamp"] = np.array([0, 1], "float16")[::-1][::-1]
        buffer.add_data(data)
        assert buffer[-1]["index"] == 2 * number + 1
        assert buffer[-1]["episode_index"] == number
        assert buffer[-1]["timestamp"] == 1
    assert len(buffer) == 8
