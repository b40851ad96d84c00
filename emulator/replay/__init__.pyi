from emulator.replay.conditions import Conditions as Conditions
from emulator.replay.conditions import Pause as Pause
from emulator.replay.critical import CriticalPath as CriticalPath
from emulator.replay.critical import critical_path as critical_path
from emulator.replay.engine import Replayed as Replayed
from emulator.replay.engine import replay as replay
from emulator.replay.parts import Parts as Parts
