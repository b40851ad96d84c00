"""Pages and pictures of replays, self-contained files: of an emulated job (page.py, picture.py), of a diagnosis
(diagnosis.py, diagnosis_picture.py). `tracks.py` is the timeline that both show.
"""
