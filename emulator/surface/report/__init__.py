"""Self-contained HTML pages and plots of replays: of an emulated job (page.py, picture.py) and of a diagnosis
(diagnosis.py, diagnosis_picture.py). `tracks.py` is the timeline that both show.
"""
