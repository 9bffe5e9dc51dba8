"""`python -m fedacg` runs the program `fedacg`."""

from fedacg.cli import main

main()
