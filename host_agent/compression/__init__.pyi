from host_agent.compression.adaptive.compressor import AutoCompressor as AutoCompressor
from host_agent.compression.adaptive.policy import Auto as Auto
from host_agent.compression.adaptive.policy import parse_auto as parse_auto
from host_agent.compression.compressed import AgentReducer as AgentReducer
from host_agent.compression.compressed import Compressor as Compressor
from host_agent.compression.compressed import Reducer as Reducer
