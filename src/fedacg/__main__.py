"""`python -m fedacg` runs the program `fedacg`."""

from fedacg.cli import start

start()
