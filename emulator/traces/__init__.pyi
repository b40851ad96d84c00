from emulator.traces.events import RankTrace as RankTrace
from emulator.traces.joined import Joined as Joined
from emulator.traces.readers.read import read as read
from emulator.traces.readers.read import read_workload as read_workload
from emulator.traces.workload import Workload as Workload
