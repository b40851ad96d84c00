"""`switchml validate replay`: traced runs replayed and changed, beside runs changed for real."""
