from host_agent.memory.activations import CompressedActivations as CompressedActivations
from host_agent.memory.activations import compressed_activations as compressed_activations
from host_agent.memory.offload import OffloadedAdam as OffloadedAdam
from host_agent.memory.pruning import Pruned as Pruned
from host_agent.memory.pruning import PrunedAdam as PrunedAdam
from host_agent.memory.pruning import pruned as pruned
from host_agent.memory.tracker import Tracker as Tracker
