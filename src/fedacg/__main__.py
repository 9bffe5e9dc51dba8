"""`python -m fedacg` is the program `fedacg`."""

from fedacg.cli import main

main()
