from emulator.networks.netsim.config import NetworkConfig as NetworkConfig
from emulator.networks.netsim.config import load as load
from emulator.networks.netsim.experiment import JobResult as JobResult
from emulator.networks.netsim.experiment import Result as Result
from emulator.networks.netsim.experiment import run as run
