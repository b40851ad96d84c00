"""What a traced job would take with something changed."""
