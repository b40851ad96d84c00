"""Self-contained HTML pages and plots of replays: of an emulated job (page.py) and of a diagnosis (diagnosis.py).
`tracks.py` is the timeline that both show.
"""
