"""The software aggregator: its compiled loop and its threads."""
