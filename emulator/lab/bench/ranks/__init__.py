"""The ranks of all benchmarks and validations: process.py is where one runs, reducing.py and training.py what it does,
team.py the parent's side."""
