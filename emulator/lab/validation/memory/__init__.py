"""Memory predictions compared with published values (`published.py`) and with torch's allocations for small models on
this machine's CPU (`measure.py`)."""
