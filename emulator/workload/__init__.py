"""A training job as a graph of operations: flat arrays that say what is done where and after what, not what it
costs."""
