from emulator.diagnosis.checks import Diagnosis as Diagnosis
from emulator.diagnosis.checks import diagnose as diagnose
from emulator.diagnosis.finding import Finding as Finding
from emulator.diagnosis.finding import Sighting as Sighting
