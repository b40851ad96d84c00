from host_agent.memory.activations import CompressedActivations as CompressedActivations
from host_agent.memory.activations import compressed_activations as compressed_activations
from host_agent.memory.tracker import Tracker as Tracker
