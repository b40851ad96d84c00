from emulator.p4switch.device import Device as Device
from emulator.p4switch.process import Process as Process
from emulator.p4switch.process import SwitchSettings as SwitchSettings
from emulator.p4switch.process import start as start
from emulator.p4switch.program.ir import Program as Program
from emulator.p4switch.program.loader.loader import load as load
from emulator.p4switch.program.loader.loader import loads as loads
from emulator.p4switch.switch import Switch as Switch
