"""Predictions beside other people's measurements: tables of rows with the measured and the predicted time, their mean
absolute percentage error and the worst case."""
