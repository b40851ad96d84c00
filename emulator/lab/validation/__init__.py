"""Comparison of predictions with published measurements: tables of rows with the measured and the predicted time, their
mean absolute percentage error and the worst case."""
