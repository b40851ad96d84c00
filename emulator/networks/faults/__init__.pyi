from emulator.networks.faults.world import Outcome as Outcome
from emulator.networks.faults.world import World as World
from emulator.networks.faults.world import play as play
