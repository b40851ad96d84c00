"""What-if analysis: predicts a traced job's time after a change."""
