"""Runs training scripts for GPUs without any: the script runs unmodified, its tensors have shapes but no values, and
its device work is costed.

`session.py` puts it together (start reading there). `driver.py` makes torch accept "cuda" as a device, `device.py`
implements its operators (`tensors.py`: its tensors; `shapes.py`: inputs and outputs), `choices.py` and `cuda.py` answer
queries of torch and scripts about it (`answers.py`: of torch.cuda's functions; `streams.py`; `typed.py`: old names of
dtypes; `nvidia_smi.py`: queries of the program). `rounds.py` and `updates.py` tell where iterations end. `values.py`
provides the few values that scripts read, `masks.py` and `indices.py` what follows from how many there are of each.
`clock.py` is the device's time, `costs.py` the operators' durations (`recurrent.py`: LSTM and GRU; `flex.py` and
`packed.py`: attention with masks of its own, and over sequences of different lengths); `allocator.py` is its memory,
`memory.py` attributes it. `compiling.py`
records the use of torch.compile, `fusion.py` predicts its kernels, and `plan_replayer.py` replays them. `group.py`
represents other ranks, with point-to-point transfers on `channels.py`; `rendezvous.py` determines when ranks that
differ arrive at a transfer. `launch.py` starts their processes (`processes.py`, `program.py`; `spawning.py` for scripts
that spawn them) and returns a `ScriptResult` (`result.py`), with one row for each rank that differs (`stages.py`).
"""
