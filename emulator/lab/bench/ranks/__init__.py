"""The rank program of all benchmarks and validations: process.py is the conversation with the parent, reducing.py and
training.py what a rank does, team.py the parent's side."""
