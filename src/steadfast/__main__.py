"""`python -m steadfast`, for torchrun and for people without scripts on their path."""

from .cli import main

main()
