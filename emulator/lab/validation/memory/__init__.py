"""Memory predictions beside published figures (`published.py`) and beside what torch allocates for small models on this
machine's processors (`measure.py`)."""
