"""`switchml train`: the same workers train the same model twice, with gradients summed by Gloo and then in-network.

`data` has the digits, `model` the network, `worker` one rank, `runner` the processes, `progress` and `report` the
output. Only `model`, `worker` and `preload`, which run in the worker processes, import torch.
"""
