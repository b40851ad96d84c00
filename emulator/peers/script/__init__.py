"""A training script on GPUs that are not there: it runs unmodified, its tensors have shapes and no values, and what it
puts on the device is costed.

`session.py` puts it together (where to begin reading). `driver.py` makes torch take "cuda" for a device, `device.py`
answers its operators (`shapes.py`: what goes in and comes out), `choices.py` and `cuda.py` what torch and scripts ask
about it; `values.py` has the few values that scripts read. `clock.py` is the device's time, `costs.py` what operators
take of it; `allocator.py` is its memory, `memory.py` what that is used for. `compiling.py` knows what torch.compile was
asked for, `fusion.py` what it would make of that, and `following.py` plays it. `group.py` stands for other ranks, to
which it sends on `channels.py`; `rendezvous.py` says when ranks that differ have come to a transfer. `launch.py` starts
their processes (`processes.py`, `program.py`; `spawning.py` where the script would) and returns a `ScriptResult`
(`result.py`), with one row for each rank that differs (`stages.py`).
"""
