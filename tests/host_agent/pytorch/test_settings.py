import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from host_agent.pytorch.settings import apply, load
from switchml.errors import ConfigError

torch = pytest.importorskip("torch")

from emulator.traces.optimizer import measured as bench  # noqa: E402

ROOT = Path(__file__).resolve().parents[3]

SCRIPT = """
import atexit, os, sys, json, torch, torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
dist.init_process_group("gloo", init_method=f"file://{sys.argv[1]}/store", rank=rank, world_size=world)
torch.manual_seed(0)
torch.set_num_threads(1)
model = DistributedDataParallel(nn.Sequential(*[nn.Linear(64, 64) for _ in range(6)]))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
torch.manual_seed(dist.get_rank())
for _ in range(12):
    optimizer.zero_grad()
    model(torch.randn(4, 64)).square().mean().backward()
    optimizer.step()
told = model._get_ddp_logging_data()
told = {name: told.get(name) for name in ("rebuilt_bucket_sizes", "comm_hook", "gradient_as_bucket_view")}
told["weights"] = [float(p.detach().double().sum()) for p in model.parameters()]
with open(f"{sys.argv[1]}/told-{dist.get_rank()}", "w") as file:
    json.dump(told | {"backend": dist.get_backend()}, file)
dist.barrier()
dist.destroy_process_group()
atexit._run_exitfuncs()  # step times are written here; Gloo's threads now and then abort an interpreter's teardown
os._exit(0)
"""


def run(folder: Path, settings: str | None = None, ranks: int = 2) -> tuple[list[dict], float]:
    """What each rank of an unmodified script tells at its end, and the median step."""
    times = folder / "times"
    times.mkdir(exist_ok=True)
    (folder / "store").unlink(missing_ok=True)
    environment = os.environ | {"PYTHONPATH": str(ROOT), "SWITCHML_STEP_TIMES": str(times), "WORLD_SIZE": str(ranks)}
    environment |= {"GLOO_SOCKET_IFNAME": "lo", "TORCH_DEVICE_BACKEND_AUTOLOAD": "1"}
    if settings is not None:
        (folder / "settings.toml").write_text(settings)
        environment["SWITCHML_SETTINGS"] = str(folder / "settings.toml")
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", SCRIPT, str(folder)],
            env=environment | {"RANK": str(rank)},
            cwd=ROOT,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(ranks)
    ]
    for process in processes:
        _, said = process.communicate(timeout=280)
        assert process.returncode == 0, said
    return [json.loads((folder / f"told-{rank}").read_text()) for rank in range(ranks)], bench.median_step_s(times)


@pytest.fixture(scope="module")
def plain(tmp_path_factory) -> list[dict]:
    """The script's end without a file."""
    told, step_s = run(tmp_path_factory.mktemp("plain"))
    assert step_s > 0
    return told


@pytest.mark.slow
def test_an_unmodified_script_obeys_the_file(tmp_path, plain):
    layer = 64 * 64 * 4 + 64 * 4
    caps = [2 * layer / 2**20, 3 * layer / 2**20, layer / 2**20]
    told, _ = run(tmp_path, f"[ddp]\nbucket_cap_mb_list = {caps}\ngradient_as_bucket_view = true\n")
    sizes = [int(size) for size in told[0]["rebuilt_bucket_sizes"].split(",")]
    assert sizes == [2 * layer, 3 * layer, layer] and told[0]["gradient_as_bucket_view"]
    assert plain[0]["rebuilt_bucket_sizes"] == str(6 * layer)
    assert told[0]["weights"] == told[1]["weights"]
    np.testing.assert_allclose(told[0]["weights"], plain[0]["weights"], rtol=1e-5)


@pytest.mark.parametrize(("text", "message"), [
    ("[ddp]\nbucket_cap_mb = 0\n", "above 0"), ("[ddp]\nbucket_cap_mb = 1\nbucket_cap_mb_list = [1]\n", "one of them"),
    ('[ddp]\nbucket_cap = "1"\n', "unknown key 'bucket_cap'"), ("[ddp]\ngradient_as_bucket_view = 1\n", "wrong type"),
    ("[optimizer]\n", "unknown table 'optimizer'"), ('[compression]\ncodec = ["zip"]\n', "zip"), ("[ddp\n", "not TOML"),
])  # fmt: skip
def test_what_nobody_would_obey_is_refused(tmp_path, text, message):
    path = tmp_path / "settings.toml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=message):
        load(path)
    with pytest.raises(ConfigError, match="can't read"):
        load(tmp_path / "none.toml")


@pytest.mark.slow
def test_codecs_by_bucket_save_no_state(tmp_path):
    """A checkpoint of a hook is refused before anything is lost, and not by whatever attribute is missing."""
    path = tmp_path / "settings.toml"
    path.write_text('[compression]\ncodec = ["none", "fp16"]\n')
    torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    try:
        state = apply(torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 4)), path)
        for call in (state.state_dict, state.__getstate__):
            with pytest.raises(ConfigError, match="codecs by bucket: expected a CodecState with one codec"):
                call()
        path.write_text('[compression]\ncodec = ["none", "powersgd"]\n')
        with pytest.raises(ConfigError, match="settings.toml: codec powersgd: matrix codecs can't be mixed"):
            apply(torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 4)), path)
    finally:
        torch.distributed.destroy_process_group()


ALONE = """
import time, torch, torch.distributed as dist
from host_agent.pytorch.settings import load
weight = torch.nn.Parameter(torch.zeros(1))
optimizer = torch.optim.SGD([weight], lr=0.1)
for _ in range(12):
    time.sleep(0.001 if __import__("os").environ.get("SWITCHML_SETTINGS") else 0.020)
    optimizer.step()
"""


@pytest.mark.slow
def test_both_ways_are_run_and_compared(tmp_path):
    path = tmp_path / "settings.toml"
    path.write_text("[ddp]\nbucket_cap_mb = 1\n")
    default_s, settings_s = bench.compare([sys.executable, "-c", ALONE], path, rounds=1)
    assert len(default_s) == len(settings_s) == 1
    assert default_s[0] > 0.019 and settings_s[0] > 0.0009


def test_a_run_without_steps_is_no_measurement(tmp_path):
    with pytest.raises(ConfigError, match="0 steps"):
        bench.step_s([sys.executable, "-c", ""], None)
    with pytest.raises(ConfigError, match="no such program"):
        bench.step_s(["there-is-no-such-program"], None)
