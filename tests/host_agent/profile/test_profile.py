"""`switchml_profile` in one process: which iterations it takes, and that it leaves a script as it was."""

from __future__ import annotations

import gzip
import json
import mmap
import subprocess
import sys
import threading
import warnings
from pathlib import Path
from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch")

from click.testing import CliRunner  # noqa: E402

from emulator.traces.readers.read import read  # noqa: E402
from host_agent.profile import capture, files, heap, switchml_profile  # noqa: E402
from host_agent.profile.iterations import living  # noqa: E402
from switchml.cli.main import cli  # noqa: E402
from switchml.errors import ConfigError, TraceError  # noqa: E402


class Training:
    """A model, its optimizer, and `train(n)`."""

    def __init__(self, scheduled: bool = False) -> None:
        self.model = torch.nn.Linear(4, 4)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)
        self.scheduler = torch.optim.lr_scheduler.StepLR(self.optimizer, 2) if scheduled else None

    def train(self, iterations: int, after=lambda: None) -> None:
        for _ in range(iterations):
            self.optimizer.zero_grad()
            self.model(torch.ones(2, 4)).sum().backward()
            self.optimizer.step()
            if self.scheduler is not None:
                self.scheduler.step()
            after()


def kinds(folder) -> list[str]:
    return [one["kind"] for one in json.loads((folder / "rank-0.about.json").read_text())["iterations"]]


def before(skip: int) -> list[str]:
    """The kinds of iterations that are left out."""
    return ["plain"] * (skip - 1) + ["lead-in"] if skip > 1 else ["plain"] * skip


@pytest.mark.slow(keep=2)
@pytest.mark.parametrize("scheduled", [False, True])
@pytest.mark.parametrize("skip", [0, 1, 3])
def test_takes_the_iterations_that_it_should(tmp_path, skip, scheduled):
    training = Training(scheduled)
    with switchml_profile(tmp_path, skip=skip, steps=2):
        training.train(8)
    assert kinds(tmp_path) == [*before(skip), "captured", "captured", "graph"]
    (trace,) = read(tmp_path)
    assert len(trace.steps) == 2
    assert (tmp_path / "rank-0.et.json").exists()
    with gzip.open(tmp_path / "rank-0.json.gz") as file:
        events = json.load(file)["traceEvents"]
    spans = [(event["ts"], event["dur"], event["name"]) for event in events if event.get("cat") == "user_annotation"]
    steps = [span for span in spans if span[2].startswith("ProfilerStep#")]
    assert [name for *_, name in sorted(steps)] == [f"ProfilerStep#{skip + i}" for i in range(2)]
    optimizing = [span for span in spans if span[2].startswith("Optimizer.step")]
    for start, duration, _ in steps:
        within = [one for one in optimizing if start <= one[0] and one[0] + one[1] <= start + duration]
        assert len(within) == 1, "an iteration ends after its optimizer's span"


@pytest.mark.slow(keep=1)
@pytest.mark.parametrize("scheduled", [False, True])
def test_leaves_the_optimizer_as_it_was(tmp_path, scheduled):
    training = Training(scheduled)
    before = dict(training.optimizer.__dict__)
    with switchml_profile(tmp_path, skip=1, steps=1):
        training.train(1)
        torch.optim.lr_scheduler.StepLR(training.optimizer, 3)  # looks into the method that it finds
        training.train(4)
    training.train(1)
    if scheduled:
        assert training.optimizer.__dict__["step"] is before["step"]
    assert kinds(tmp_path) == ["plain", "captured", "graph"]


def test_only_the_first_optimizer_counts(tmp_path):
    one, other = Training(), Training()
    with switchml_profile(tmp_path, skip=2, steps=2, execution_trace=False):
        for _ in range(6):
            one.train(1)
            other.train(1)
    assert kinds(tmp_path) == [*before(2), "captured", "captured"]
    assert not (tmp_path / "rank-0.et.json").exists()


@pytest.mark.slow(keep=1)
@pytest.mark.parametrize("skip", [0, 1, 2])
def test_steps_can_be_told(tmp_path, skip):
    training = Training()
    with switchml_profile(tmp_path, skip=skip, steps=2, execution_trace=False, by_step=True) as profile:
        for _ in range(5):
            training.train(2)
            profile.step()
    assert kinds(tmp_path) == [*before(skip), "captured", "captured"]
    (trace,) = read(tmp_path)
    within = (trace.events.start_s >= trace.steps[0, 0]) & (trace.events.start_s < trace.steps[-1, 1])
    names = [trace.names[name] for name in trace.events.name[within]]
    assert names.count("Optimizer.step#SGD.step") == 4, "two of them in each iteration"
    assert len(trace.steps) == 2


def test_steps_that_nobody_asked_for(tmp_path):
    with switchml_profile(tmp_path, skip=0, steps=1) as profile, pytest.raises(ConfigError, match="by_step=True"):
        profile.step()


def test_a_block_that_ends_early(tmp_path):
    training = Training()
    with switchml_profile(tmp_path, skip=1, steps=10):
        training.train(3)
        training.model(torch.ones(2, 4))
    assert kinds(tmp_path) == ["plain", "captured", "captured"]
    (trace,) = read(tmp_path)
    assert len(trace.steps) == 2, "the iteration that was not finished does not count"


def test_a_block_that_fails_is_written_too(tmp_path):
    with pytest.raises(ZeroDivisionError), switchml_profile(tmp_path, skip=1, steps=10):
        Training().train(3)
        raise ZeroDivisionError
    assert kinds(tmp_path) == ["plain", "captured", "captured"]


@pytest.mark.parametrize("iterations", [1, 2])
def test_a_block_that_is_too_short_says_so(tmp_path, iterations):
    seen = f"{iterations} iterations were seen, and the capture begins after 3"
    with pytest.warns(UserWarning, match=seen), switchml_profile(tmp_path):
        Training().train(iterations)
    with pytest.raises(TraceError, match="no trace in"):
        read(tmp_path)


def test_pairs(tmp_path):
    with switchml_profile(tmp_path, skip=1, steps=2, pairs=2, execution_trace=False):
        Training().train(12)
    assert kinds(tmp_path) == ["plain"] + ["plain", "plain", "lead-in", "captured", "captured"] * 2
    (trace,) = read(tmp_path)
    assert len(trace.steps) == 2, "the last capture stays"


@pytest.mark.slow(keep=1)
@pytest.mark.parametrize("shapes", [False, True])
def test_gradients_have_sizes_with_and_without_shapes(tmp_path, shapes):
    training = Training()
    shared = training.model.weight
    with switchml_profile(tmp_path, skip=2, steps=2, execution_trace=False, shapes=shapes, by_step=True) as profile:
        for _ in range(5):
            training.train(1)
            (shared * 2).sum().backward()  # as in a loop that accumulates, the weight's is made twice
            profile.step()
    (trace,) = read(tmp_path)
    events = trace.events
    begun_s = trace.steps[0, 0]
    sizes = events.bytes[events.gradient & (events.start_s >= begun_s)].tolist()
    assert sorted(sizes[:2]) == [16, 64] and sizes[2] == 64 and sizes == sizes[:3] * 2
    with gzip.open(tmp_path / "rank-0.json.gz") as file:
        assert (b'"Input Dims"' in file.read()) == shapes


def test_what_more_than_the_hooks_have_seen_has_no_size(tmp_path):
    training = Training()
    with switchml_profile(tmp_path, skip=1, steps=2, execution_trace=False):
        training.train(1)
        later = torch.ones(3, requires_grad=True)  # nobody's parameter
        training.train(2, after=lambda: later.sum().backward())
    (trace,) = read(tmp_path)
    assert trace.events.gradient.sum() > 4 and not trace.events.bytes[trace.events.gradient].any()


def test_nothing_is_left_on_after_a_capture(tmp_path):
    import torch.distributed as dist
    from torch._C._distributed_c10d import Work

    from host_agent import recording

    before, send = Work.wait, dist.ProcessGroup.send
    with switchml_profile(tmp_path, skip=0, steps=1, execution_trace=False):
        assert Work.wait is not before
        Training().train(2)
        assert Work.wait is before
        assert dist.ProcessGroup.send is send
    assert recording._current is None
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        Training().train(2)


@pytest.mark.parametrize("wrong", [{"skip": -1}, {"steps": 0}, {"pairs": -1}, {"packets": 0}])
def test_numbers_that_make_no_sense(tmp_path, wrong):
    with pytest.raises(ConfigError, match="expected at least"):
        switchml_profile(tmp_path, **wrong)


def test_a_folder_that_cannot_be(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match="can't make the folder"):
        switchml_profile(tmp_path / "file" / "traces")


# Files that are broken


@pytest.fixture
def folder(tmp_path):
    with switchml_profile(tmp_path, skip=1, steps=1, execution_trace=False):
        Training().train(3)
    return tmp_path


def test_one_file_stands_for_its_rank(folder):
    for name in ("rank-0.about.json", "rank-0.json.gz"):
        (trace,) = read(folder / name)
        assert trace.format == "switchml"


def test_what_a_killed_rank_leaves_half_done_is_passed_over(folder):
    (folder / ".rank-1.json.gz.4711").write_bytes(b"{")
    (folder / ".et.4711.json").write_text('{"schema": "1.1')
    assert [trace.rank for trace in read(folder)] == [0]


@pytest.mark.parametrize(("name", "damage", "message"), [
    ("json.gz", None, r"rank-0\.json\.gz is not beside it"),
    ("about.json", lambda text: text.replace('"version": 1', '"version": 2'), "has version 2; this switchml reads"),
    ("about.json", lambda text: text[:100], "is not JSON"),
    ("sizes.json", lambda text: text[:20], r"rank-0\.sizes\.json is damaged"),
])  # fmt: skip
def test_files_that_are_broken(folder, name, damage, message):
    path = folder / f"rank-0.{name}"
    if damage is None:
        path.unlink()
    else:
        path.write_text(damage(path.read_text()))
    with pytest.raises(TraceError, match=message):
        read(folder)


# The command line


def test_a_folder_with_a_capture_is_not_overwritten(folder):
    refused = CliRunner().invoke(cli, ["trace", "capture", "--out", str(folder), "--", "true"])
    assert refused.exit_code == 1 and "there is a capture in it already" in refused.output
    (folder / "mine.txt").touch()
    CliRunner().invoke(cli, ["trace", "capture", "--overwrite", "--out", str(folder), "--", "true"])
    assert [path.name for path in folder.iterdir()] == ["mine.txt"]


# Memory to grow in


FAULTS = """
import ctypes
from host_agent.profile import heap
reserve = heap.Reserve(200 * 100_000)
before = heap.page_faults()
used = [reserve._c.malloc(90_000) for _ in range(100)]
for block in used:
    ctypes.memset(block, 1, 90_000)
print(heap.page_faults() - before)
for block in used:
    reserve._c.free(block)
reserve.release()
reserve.release()
"""


@pytest.mark.slow
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="needs glibc")
def test_a_reserve_is_touched_before_it_is_needed():
    """In a process of its own: where thousands of tests have been, other threads have faults, too."""
    done = subprocess.run([sys.executable, "-c", FAULTS], capture_output=True, text=True, check=True)
    assert int(done.stdout) < 100 * 90_000 / 4096 / 4, "what is not in the reserve costs a fault for each page"


@pytest.mark.slow(keep=1)
@pytest.mark.parametrize("touches", [False, True])
def test_only_jobs_that_touch_no_new_memory_get_a_reserve(tmp_path, monkeypatch, touches):
    asked = []
    plain = capture.Reserve
    monkeypatch.setattr(capture, "Reserve", lambda nbytes: plain(asked.append(nbytes) or 0))
    training = Training()

    def touch() -> None:
        if touches:
            mmap.mmap(-1, 4 << 20).write(bytes(4 << 20))

    with switchml_profile(tmp_path, skip=12, steps=1, execution_trace=False):
        training.train(15, after=touch)
    assert asked == [0 if touches else heap.RESERVE_BYTES]


def test_a_trace_that_torch_can_not_write(tmp_path):
    """On a full disk it leaves a part, says that it failed on stderr, and raises nothing."""
    profiler = SimpleNamespace(export_chrome_trace=lambda path: Path(f"{path}.tmp").write_text("half"))
    with pytest.raises(ConfigError, match=r"torch could not write its trace there; [\d,]+ bytes are free on that disk"):
        files.write(SimpleNamespace(rank=0, profiler=profiler), tmp_path, None, {})
    assert list(tmp_path.iterdir()) == []


def test_a_planned_loaders_counters_are_in_the_trace():
    from emulator.traces.readers.captured import _details
    from host_agent.loading import PlannedLoader
    from host_agent.profile.profile import _loading

    loader = PlannedLoader(list(range(12)), 4, epochs=1, rank=0, world_size=1, peers=None, sample_bytes=8)
    assert len(list(loader)) == 3
    counters = _loading()
    assert counters["storage_samples"] == 12 and counters["steps"] == 3
    details = _details({"versions": {}, "codec": "", "ddp": [], "agents": [], "loading": counters})
    assert details["samples"] == "0 kept, 0 from others, 12 read" and "waits of" in details["loading"]


@pytest.mark.slow
def test_looking_for_objects_harms_no_other_thread():
    """Python enlarges a tuple that it builds from a generator, which fails while somebody else refers to it."""
    model, failures, is_over = torch.nn.Linear(2, 2), [], threading.Event()

    def build_tuples():
        while not is_over.is_set():
            try:
                tuple(sum(range(100)) for _ in range(50))
            except SystemError as error:
                failures.append(error)

    thread = threading.Thread(target=build_tuples)
    thread.start()
    for _ in range(20):
        found = living(torch.nn.Parameter)
    is_over.set()
    thread.join()
    assert any(thing is model.weight for thing in found)
    assert not failures
