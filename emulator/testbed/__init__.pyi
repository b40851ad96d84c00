from emulator.testbed.fabric import Fabric as Fabric
from emulator.testbed.fabric import P4Node as P4Node
from emulator.testbed.layout import Layout as Layout
from emulator.testbed.star import LinkOptions as LinkOptions
from emulator.testbed.star import Star as Star
