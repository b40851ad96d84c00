from host_agent.agent import HostAgent as HostAgent
from host_agent.base import Agent as Agent
from host_agent.calls import Handle as Handle
from host_agent.loop import warm_up as warm_up
from host_agent.sharded import ShardedAgent as ShardedAgent
