"""What to change about a job: passes over its graph, a search for their best setting, a file. docs/optimizer.md"""
