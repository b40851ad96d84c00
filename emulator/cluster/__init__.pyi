from emulator.cluster.accelerator import Accelerator as Accelerator
from emulator.cluster.cluster import Cluster as Cluster
from emulator.cluster.cluster import Interconnect as Interconnect
from emulator.cluster.cluster import clusters as clusters
from emulator.cluster.cluster import load as load
from emulator.cluster.cost import Cost as Cost
