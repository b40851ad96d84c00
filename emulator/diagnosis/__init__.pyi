from emulator.diagnosis.checks import Diagnosis as Diagnosis
from emulator.diagnosis.checks import diagnose as diagnose
from emulator.diagnosis.situation import Finding as Finding
from emulator.diagnosis.situation import Sighting as Sighting
