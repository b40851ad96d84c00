from emulator.jobs.replay.conditions import Conditions as Conditions
from emulator.jobs.replay.conditions import Pause as Pause
from emulator.jobs.replay.critical import CriticalPath as CriticalPath
from emulator.jobs.replay.critical import critical_path as critical_path
from emulator.jobs.replay.engine import Replayed as Replayed
from emulator.jobs.replay.engine import replay as replay
from emulator.jobs.replay.parts import Parts as Parts
