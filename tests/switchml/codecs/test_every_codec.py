"""What holds for every codec: sizes as claimed, inputs left alone, nonsense refused, all ranks with the same result."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from switchml.codecs import (
    CODECS,
    Gather,
    Max,
    Payload,
    SparseSum,
    StepContext,
    Sum,
    allreduce,
    parse,
    parse_error_feedback,
    together,
)
from switchml.errors import PayloadError, UnsupportedTensor
from tests.support.examples import examples

EVERY = [
    *CODECS, "randomk:unbiased=true", "topk:ratio=1", "qsgd:levels=1,bucket=7,norm=max", "qsgd:levels=32767",
    "sidco:fit=pareto", "sketch:buckets=1000", "thc:bits=1,steps=2,block=64", "thc:bits=8,steps=510,block=64",
    "powersgd:rank=5", "szx:mode=abs,bound=0", "szx:block=9",
]  # fmt: skip
SIZES = [0, 1, 2, 3, 63, 129, 1000, 5001]


def gradient(n: int, seed: int = 0) -> np.ndarray:
    return (np.random.default_rng(seed).laplace(size=n) * 1e-2).astype(np.float32)


@pytest.mark.parametrize("spec", EVERY)
def test_round_trip(spec):
    codec = parse(spec)
    for n in SIZES:
        x = gradient(n)
        before, context = x.copy(), StepContext("weight", step=3, seed=5)
        payload = codec.compress(codec.new_state(), x, context)
        assert np.array_equal(x, before), "the vector is left as it is"
        y = codec.decompress(Payload.from_bytes(payload.to_bytes()), n)
        assert y.dtype == np.float32 and y.shape == (n,) and np.isfinite(y).all()
        assert len(payload.to_bytes()) == payload.nbytes
        assert codec.payload_bytes(n) in (None, payload.nbytes)
        again = codec.compress(codec.new_state(), x, context)
        assert np.array_equal(again.body, payload.body), "randomness comes from the context alone"


@pytest.mark.parametrize("spec", EVERY)
def test_floats_that_are_added_up_are_those_that_it_says(spec):
    codec, x = parse(spec), gradient(3000)
    context = StepContext("weight", shape=(60, 50))
    request = next(codec.exchange(codec.new_state(), x, context))
    added = request.wire if isinstance(request, Sum) and request.values.dtype == np.float32 else ""
    assert codec.floats == added
    assert codec.is_half == (spec in ("fp16", "bf16"))


@pytest.mark.parametrize("spec", EVERY)
@pytest.mark.parametrize("world", [1, 3])
def test_all_ranks_get_the_same(spec, world):
    codec, feedback = parse(spec), parse_error_feedback(parse(spec).error_feedback)
    for n in (0, 1, 130, 3000):
        states = [(codec.new_state(), feedback.new_state()) for _ in range(world)]
        for step in range(4):
            contexts = [StepContext("weight", step, seed=1, rank=rank, world=world) for rank in range(world)]
            ranks = zip(states, contexts, strict=True)
            means = together([allreduce(codec, feedback, *s, gradient(n, step * 8 + t.rank), t) for s, t in ranks])
            assert means[0].dtype == np.float32 and means[0].shape == (n,)
            assert all(np.array_equal(mean, means[0]) for mean in means)


@pytest.mark.parametrize("spec", EVERY)
def test_alone_an_exchange_is_the_codec_itself(spec):
    """With one rank and nothing to share, the mean is what this rank's payload decodes to, and so is its own part."""
    codec, x, context = parse(spec), gradient(2000), StepContext("weight", world=1)
    [outcome] = together([codec.exchange(codec.new_state(), x, context)])
    decoded = codec.decompress(codec.compress(codec.new_state(), x, context), x.size)
    np.testing.assert_allclose(outcome.mean, decoded, rtol=1e-5, atol=1e-9)
    np.testing.assert_allclose(outcome.own, decoded, rtol=1e-5, atol=1e-9)


@pytest.mark.parametrize("spec", EVERY)
def test_exchange_asks_for_what_the_codec_declares(spec):
    codec = parse(spec)
    asked = []
    generator = codec.exchange(codec.new_state(), gradient(500), StepContext("weight", world=1))
    request = next(generator)
    with pytest.raises(StopIteration):
        while True:
            asked.append(type(request))
            answer = [request.payload] if isinstance(request, Gather) else None
            if isinstance(request, SparseSum):
                answer = np.zeros(request.count, np.float32)
            if isinstance(request, Sum | Max):
                answer = request.values
                assert isinstance(request, Max) or request.nbytes <= 4 * answer.size
            request = generator.send(answer)
    wanted = {"gather": Gather, "sparse-sum": SparseSum, "sum": Sum, "vote": Sum}[codec.aggregation]
    assert wanted in asked and set(asked) <= {wanted, Max}


@pytest.mark.parametrize("spec", EVERY)
def test_damaged_payloads(spec):
    """Cut short, lengthened, or with bytes changed: an error that names the trouble, or some numbers; nothing else."""
    codec, n, random = parse(spec), 300, np.random.default_rng(1)
    body = codec.compress(codec.new_state(), gradient(n), StepContext()).body
    for wrong in (body[:-1], body[:0], body[: body.size // 2], np.append(body, np.uint8(0))):
        with pytest.raises(PayloadError, match=r"\d"):
            codec.decompress(Payload(codec.number, n, wrong), n)
    for _ in range(200):
        changed = body.copy()
        places = random.integers(0, body.size, random.integers(1, 4))
        changed[places] = random.integers(0, 256, places.size)
        try:
            y = codec.decompress(Payload(codec.number, n, changed), n)
            assert y.dtype == np.float32 and y.shape == (n,)
        except PayloadError:
            pass


@pytest.mark.parametrize("spec", list(CODECS))
@given(data=st.binary(max_size=200), n=st.integers(0, 100))
@examples(60)
def test_any_bytes(spec, data, n):
    codec = parse(spec)
    with np.errstate(all="ignore"):
        try:
            y = codec.decompress(Payload(codec.number, n, np.frombuffer(data, np.uint8)), n)
        except PayloadError:
            return
    assert y.dtype == np.float32 and y.shape == (n,)


def test_header():
    x = gradient(10)
    payload = parse("fp16").compress(None, x)
    with pytest.raises(PayloadError, match="codec number 1, not 2"):
        parse("bf16").decompress(payload, 10)
    with pytest.raises(PayloadError, match="holds 10 elements: expected 11"):
        parse("fp16").decompress(payload, 11)
    with pytest.raises(PayloadError, match="5 bytes: its header alone has 12"):
        Payload.from_bytes(payload.to_bytes()[:5])
    with pytest.raises(PayloadError, match="begins with b'zz', version 1"):
        Payload.from_bytes(b"zz" + payload.to_bytes()[2:])


@pytest.mark.parametrize("x", [np.zeros(3), np.zeros((2, 2), np.float32), np.zeros(8, np.float32)[::2], [1.0]])
def test_only_float32_vectors(x):
    for codec in CODECS.values():
        with pytest.raises(UnsupportedTensor, match="codecs take contiguous float32 vectors"):
            codec().compress(codec().new_state(), x)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("spec", [name for name in CODECS if name not in ("signsgd", "signum", "randomk")])
def test_what_is_not_finite_is_seen_by_all(spec, value):
    """A training loop that skips steps with infinities must see them, whichever rank had them. (Signs can't say it.)"""
    codec = parse(spec)
    xs = [gradient(3000, rank) for rank in range(2)]
    xs[1][1234] = value
    with np.errstate(all="ignore"):
        contexts = [StepContext("w", rank=rank, world=2) for rank in range(2)]
        outcomes = together([codec.exchange(codec.new_state(), x, each) for x, each in zip(xs, contexts, strict=True)])
    assert all(not np.isfinite(outcome.mean).all() for outcome in outcomes)


def scales():
    """Every codec with every scale that its documentation promises: sums may leave float32 above 1e34."""
    for spec in EVERY:
        for scale in (0.0, 1e-42, 1e-30, 1e34, 3e38):
            sums = spec.startswith(("qsgd", "thc", "powersgd", "randomk"))
            if scale <= (60000 if spec == "fp16" else 1e34 if sums else 3e38):
                yield spec, scale


@pytest.mark.parametrize(("spec", "scale"), list(scales()))
def test_any_scale(spec, scale):
    """Zeros, denormals and large numbers are no reason for NaN or an infinity."""
    codec = parse(spec)
    x = (np.linspace(-1, 1, 700) * scale).astype(np.float32)
    y = codec.decompress(codec.compress(codec.new_state(), x), x.size)
    assert np.isfinite(y).all()
    if scale == 0 and codec.aggregation != "vote":
        assert not y.any()
