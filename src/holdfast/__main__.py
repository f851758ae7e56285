"""`python -m holdfast`, for torchrun and for people without scripts on their path."""

from .cli.main import main

main()
