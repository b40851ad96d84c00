"""The rank processes of all benchmarks and validations: process.py starts a rank, reducing.py and training.py are its
kinds, team.py is the parent's side."""
