"""What `switchml train` does: the same small model trained twice by the same workers, gradients summed by Gloo and then
in-network.

`data` holds the digits, `model` the network, `worker` what one rank does, `runner` the processes, `progress` and
`report` what people see. torch is imported in `model`, `worker` and `preload` alone: they run in the worker processes.
"""
