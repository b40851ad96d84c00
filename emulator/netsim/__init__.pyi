from emulator.netsim.config import NetworkConfig as NetworkConfig
from emulator.netsim.config import load as load
from emulator.netsim.experiment import JobResult as JobResult
from emulator.netsim.experiment import Result as Result
from emulator.netsim.experiment import run as run
