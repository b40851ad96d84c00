"""What to change about a job: passes over its graph, a search for the best setting of them, and a file of settings
for those who run the job. docs/optimizer.md
"""
