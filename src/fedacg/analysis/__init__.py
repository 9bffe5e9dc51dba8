"""Analyses of runs: why a method works, in numbers and pictures; `run.analyse` makes them all.

The mathematics is in surface.py, cka.py and rounds.py. Figures that every round has without recording
are made in `drift`; the recordings themselves are read by `recording`.
"""
