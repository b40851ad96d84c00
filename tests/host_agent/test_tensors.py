"""What the agent makes of arrays and tensors: addresses it can read, copies where it can't, refusals in words.

No agent runs here. `reduced` plays one by hand: it reads what `prepare` points at, and writes a result where that says.
"""

import ctypes

import numpy as np
import pytest

from host_agent.calls import Request
from host_agent.core import widened
from host_agent.tensors import HALVES, Prepared, prepare
from switchml.errors import UnsupportedTensor
from switchml.runtime.memory import f32_at

NATIVE = ("float32", "float64", "int32", "int64")


@pytest.fixture
def torch():
    return pytest.importorskip("torch", reason="needs torch")


def seen(call: Prepared) -> np.ndarray:
    """The elements at `source`, halves as uint16."""
    dtype = np.dtype("uint16" if call.dtype in HALVES else call.dtype)
    return np.frombuffer(ctypes.string_at(call.source, call.numel * dtype.itemsize), dtype)


def reduced(call: Prepared, values: np.ndarray):
    """What the caller gets if the all-reduce writes `values` to `target`."""
    values = np.ascontiguousarray(values)
    ctypes.memmove(call.target, values.ctypes.data, values.nbytes)
    return call.result


def sample(dtype, shape=(3, 4)) -> np.ndarray:
    return np.array(np.arange(np.prod(shape)).reshape(shape) - 5, dtype)


# -- NumPy --


@pytest.mark.parametrize("dtype", [*NATIVE, "float16"])
@pytest.mark.parametrize("shape", [(), (1,), (5,), (3, 4), (2, 3, 4), (0,), (3, 0)])
def test_arrays_of_any_shape(dtype, shape):
    x = sample(dtype, shape)
    kept = x.copy()
    call = prepare(x)
    assert (call.numel, call.dtype) == (x.size, dtype)
    assert np.array_equal(seen(call), x.ravel().view("uint16" if dtype == "float16" else dtype))
    result = reduced(call, 3 * x)
    assert isinstance(result, np.ndarray) and result.shape == shape and result.dtype == x.dtype
    assert np.array_equal(result, 3 * x) and np.array_equal(x, kept)


def test_a_contiguous_array_is_read_in_place():
    x = sample("float32")
    assert prepare(x).source == x.ctypes.data and prepare(x).target != x.ctypes.data


@pytest.mark.parametrize("view", [
    lambda x: x.T,
    lambda x: x[::2],
    lambda x: x[:, 1:3],
    lambda x: x[::-1],
    lambda x: np.broadcast_to(x[0], (5, 4)),
    lambda x: np.asfortranarray(x),
], ids=["transposed", "strided", "columns", "reversed", "broadcast", "fortran"])  # fmt: skip
def test_views_that_are_not_contiguous(view):
    x = view(sample("float64"))
    call = prepare(x)
    assert np.array_equal(seen(call), x.ravel())
    result = reduced(call, np.ascontiguousarray(2 * x))
    assert np.array_equal(result, 2 * x) and result.flags.c_contiguous


def test_read_only_input_is_fine():
    x = sample("int32")
    x.flags.writeable = False
    call = prepare(x)
    assert call.source == x.ctypes.data
    assert np.array_equal(reduced(call, x + 1), x + 1)


def test_lists_and_numbers_are_arrays_too():
    assert prepare([1.0, 2.0]).dtype == "float64"
    assert prepare(7).dtype == "int64" and prepare(7).result.shape == ()


@pytest.mark.parametrize(
    "dtype", ["uint8", "int16", "uint32", "bool", "complex64", "float128", ">f4", ">i8", "U3", "object"]
)
def test_refuses_other_dtypes(dtype):
    try:
        dtype = np.dtype(dtype)
    except TypeError:
        pytest.skip(f"this machine's NumPy has no {dtype}")
    x = np.zeros(4, dtype)
    with pytest.raises(UnsupportedTensor) as caught:
        prepare(x)
    assert dtype.str in str(caught.value) and "expected float32" in str(caught.value)
    assert isinstance(caught.value, TypeError)


# -- out --


def test_out_is_what_comes_back():
    x, out = sample("float32"), np.empty((3, 4), np.float32)
    call = prepare(x, out)
    assert call.target == out.ctypes.data
    assert reduced(call, 2 * x) is out and np.array_equal(out, 2 * x)


def test_out_may_be_the_input():
    x = sample("float32")
    call = prepare(x, x)
    assert call.source == call.target == x.ctypes.data


@pytest.mark.parametrize(
    "views",
    [lambda a: (a[:-3], a[3:]), lambda a: (a[3:], a[:-3]), lambda a: (a[::-1], a), lambda a: (a[::2], a[:50])],
    ids=["up", "down", "reversed", "strided"],
)
def test_an_input_that_overlaps_out_is_read_before_it_is_overwritten(views):
    """Results arrive chunk by chunk, while later chunks are still to be sent."""
    x, out = views(sample("float32", (100,)))
    before = x.copy()
    call = prepare(x, out)
    ctypes.memset(call.target, 0xFF, 4 * 10)
    assert np.array_equal(seen(call), before)


def test_neighbours_in_one_buffer_are_not_copied():
    buffer = sample("float32", (100,))
    call = prepare(buffer[:50], buffer[50:])
    assert call.source == buffer.ctypes.data


@pytest.mark.parametrize("out", [
    np.zeros((4, 3), np.float32), np.zeros(12, np.float32), np.zeros((3, 4)), [0.0] * 12, np.zeros((3, 4), ">f4"),
    np.zeros((4, 3), np.float32).T, np.zeros((3, 8), np.float32)[:, ::2],
], ids=["shape", "flat", "dtype", "list", "byte-order", "transposed", "strided"])  # fmt: skip
def test_refuses_an_out_that_does_not_fit(out):
    with pytest.raises(UnsupportedTensor, match="out: expected"):
        prepare(sample("float32"), out)


def test_refuses_a_read_only_out():
    out = np.zeros((3, 4), np.float32)
    out.flags.writeable = False
    with pytest.raises(UnsupportedTensor, match="writeable"):
        prepare(sample("float32"), out)


# -- half precision --


def half_all_reduce(source: np.ndarray, dtype: str, change, error=None):
    """Widen, let `change` stand for the network, narrow: (result bits, errors that the callback saw)."""
    target, errors = np.full_like(source, 0x1234), []
    request = Request(source.ctypes.data, target.ctypes.data, source.size, dtype, "sum", errors.append)
    wide = widened(request)
    assert (wide.source, wide.dtype) == (wide.target, "float32") and wide.source != request.source
    values = f32_at(wide.source, source.size)
    values[:] = change(values)
    wide.on_done(error)
    return target, errors


def test_float16_is_widened_exactly_and_rounded_once():
    x = np.arange(65536, dtype=np.uint16).view(np.float16)
    target, errors = half_all_reduce(x.view(np.uint16), "float16", lambda v: v)
    assert errors == [None] and np.array_equal(target.view(np.float16), x, equal_nan=True)
    finite = x[np.isfinite(x)]
    target, _ = half_all_reduce(finite.view(np.uint16), "float16", lambda v: v * np.float32(1 / 3))
    assert np.array_equal(
        target.view(np.float16), (finite.astype(np.float64) * float(np.float32(1 / 3))).astype(np.float16)
    )


@pytest.mark.filterwarnings("error")
def test_a_float16_sum_beyond_its_range_is_infinity_without_a_warning():
    x = np.array([60000, -60000, 65504, 1], np.float16)
    target, _ = half_all_reduce(x.view(np.uint16), "float16", lambda v: 2 * v)
    assert target.view(np.float16).tolist() == [np.inf, -np.inf, np.inf, 2]


@pytest.mark.parametrize("dtype", HALVES)
def test_after_an_error_the_target_is_left_alone(dtype):
    problem = RuntimeError("lost")
    target, errors = half_all_reduce(np.zeros(4, np.uint16), dtype, lambda v: v + 1, problem)
    assert errors == [problem] and set(target.tolist()) == {0x1234}


@pytest.mark.parametrize("dtype", HALVES)
def test_halves_round_like_torch(torch, dtype):
    generator = np.random.default_rng(7)
    bits = generator.integers(0, 65536, 50_000, np.uint16)
    x = torch.from_numpy(bits.view(np.int16)).view(getattr(torch, dtype))
    factor = np.float32(1.2345678)
    with np.errstate(all="ignore"):
        target, _ = half_all_reduce(bits, dtype, lambda v: v * factor)
        theirs = (torch.from_numpy(x.float().numpy() * factor)).to(getattr(torch, dtype))
    ours = torch.from_numpy(target.view(np.int16)).view(getattr(torch, dtype))
    assert torch.equal(ours.isnan(), theirs.isnan())
    assert torch.equal(ours[~ours.isnan()], theirs[~theirs.isnan()])


# -- torch --


@pytest.mark.parametrize("dtype", [*NATIVE, *HALVES])
@pytest.mark.parametrize("shape", [(), (1,), (3, 4), (2, 3, 4), (0,)])
def test_tensors_of_any_shape(torch, dtype, shape):
    x = torch.from_numpy(sample("float64", shape)).to(getattr(torch, dtype))
    call = prepare(x)
    assert (call.numel, call.dtype) == (x.numel(), dtype)
    assert call.source == x.data_ptr() and (call.target != call.source or not x.numel())
    same_bits = x.view(torch.int16) if dtype in HALVES else x
    assert seen(call).tobytes() == same_bits.numpy().tobytes()
    assert call.result.shape == x.shape and call.result.dtype == x.dtype


@pytest.mark.parametrize(
    "view",
    [lambda x: x.T, lambda x: x[::2], lambda x: x[:, 1:3], lambda x: x[0].expand(5, 4)],
    ids=["transposed", "strided", "columns", "expanded"],
)
def test_tensors_that_are_not_contiguous(torch, view):
    x = view(torch.arange(12.0).reshape(3, 4))
    call = prepare(x)
    assert np.array_equal(seen(call), x.reshape(-1).numpy())
    result = reduced(call, (2 * x).contiguous().numpy())
    assert result.is_contiguous() and torch.equal(result, 2 * x)


def test_a_tensor_that_requires_grad_is_read_without_it(torch):
    x = torch.ones(4, requires_grad=True)
    result = prepare(x).result
    assert not result.requires_grad and torch.equal(x.detach(), torch.ones(4))


def test_a_torch_out(torch):
    x, out = torch.arange(4.0), torch.empty(4)
    assert reduced(prepare(x, out), 2 * x.numpy()) is out and torch.equal(out, 2 * x)
    call = prepare(x, x)
    assert call.source == call.target == x.data_ptr()
    for wrong in (torch.empty(5), torch.empty(4, dtype=torch.float64), torch.empty(8)[::2]):
        with pytest.raises(UnsupportedTensor, match="out: expected a contiguous tensor"):
            prepare(x, wrong)


def test_refuses_a_torch_out_that_is_no_tensor_in_cpu_memory(torch):
    for wrong in (np.zeros(4, np.float32), torch.empty(4, device="meta")):
        with pytest.raises(UnsupportedTensor, match="out: expected"):
            prepare(torch.arange(4.0), wrong)


def test_a_torch_input_that_overlaps_out_is_read_before_it_is_overwritten(torch):
    buffer = torch.arange(100.0)
    call = prepare(buffer[:-3], buffer[3:])
    ctypes.memset(call.target, 0xFF, 40)
    assert np.array_equal(seen(call), np.arange(97.0, dtype=np.float32))


def test_lazily_negated_tensors_are_read_as_they_look(torch):
    """torch may keep a minus sign as a flag beside the memory (here on the imaginary part of a conjugate)."""
    x = torch.complex(torch.ones(3), torch.arange(3.0)).conj().imag
    assert x.is_neg()
    assert seen(prepare(x)).tolist() == x.tolist()
    single = torch.complex(torch.ones(1), torch.ones(1)).conj().imag
    assert seen(prepare(single)).tolist() == [-1.0]


@pytest.mark.parametrize(("make", "words"), [
    (lambda torch: torch.zeros(3, dtype=torch.int16), "dtype int16: expected float32"),
    (lambda torch: torch.zeros(3, dtype=torch.complex64), "dtype complex64"),
    (lambda torch: torch.zeros(3, dtype=torch.bool), "dtype bool"),
    (lambda torch: torch.eye(3).to_sparse(), "sparse_coo tensor: expected a dense one in CPU memory"),
    (lambda torch: torch.zeros(3, device="meta"), "meta tensor: expected a dense one in CPU memory"),
    (lambda torch: torch.eye(3).to_sparse_csr(), "sparse_csr tensor: expected a dense one in CPU memory"),
], ids=["int16", "complex", "bool", "sparse", "meta", "csr"])  # fmt: skip
@pytest.mark.filterwarnings("ignore:Sparse")
def test_refuses_other_tensors(torch, make, words):
    with pytest.raises(UnsupportedTensor, match=words):
        prepare(make(torch))
