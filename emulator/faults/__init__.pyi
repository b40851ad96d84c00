from emulator.faults.world import Outcome as Outcome
from emulator.faults.world import World as World
from emulator.faults.world import play as play
