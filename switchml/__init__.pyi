from emulator.surface.api import trace as trace
from emulator.surface.api.emulating import Result as Result
from emulator.surface.api.emulating import Sweep as Sweep
from emulator.surface.api.emulating import emulate as emulate
from emulator.surface.api.emulating import sweep as sweep
from switchml.aggregator.software import SoftwareDataplane as SoftwareDataplane
from switchml.control.server import Controller as Controller
from switchml.errors import AggregatorLost as AggregatorLost
from switchml.errors import CollectiveTimeout as CollectiveTimeout
from switchml.errors import ConfigError as ConfigError
from switchml.errors import JobError as JobError
from switchml.errors import JoinError as JoinError
from switchml.errors import LeftBehind as LeftBehind
from switchml.errors import LoadingError as LoadingError
from switchml.errors import PeerLost as PeerLost
from switchml.errors import RanksDisagree as RanksDisagree
from switchml.errors import SumOverflow as SumOverflow
from switchml.errors import SwitchMLError as SwitchMLError
from switchml.errors import UnsupportedTensor as UnsupportedTensor

__version__: str

def _end_at_once(*_: object) -> None: ...
