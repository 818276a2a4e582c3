"""`python -m hymo` is the `hymo` command: how torchrun starts it."""

from hymo.cli import main

main()
