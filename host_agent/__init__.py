"""What runs beside a worker: the agent that joins a job and all-reduces arrays, and the PyTorch backend on it."""
