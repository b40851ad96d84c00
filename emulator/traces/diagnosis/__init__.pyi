from emulator.traces.diagnosis.checks import Diagnosis as Diagnosis
from emulator.traces.diagnosis.checks import diagnose as diagnose
from emulator.traces.diagnosis.context import Finding as Finding
from emulator.traces.diagnosis.context import Sighting as Sighting
