from emulator.networks.testbed.fabric import Fabric as Fabric
from emulator.networks.testbed.fabric import P4Node as P4Node
from emulator.networks.testbed.layout import Layout as Layout
from emulator.networks.testbed.star import LinkOptions as LinkOptions
from emulator.networks.testbed.star import Star as Star
