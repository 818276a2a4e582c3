"""The command line: parse, call, print. Importing it costs no torch and no MLflow; each command imports what it uses."""

import atexit
import gc
import sys


def main() -> None:
    """Entry point of the `hymo` command."""
    from hymo.cli.app import main as run

    atexit.register(_leave)
    run()


def _leave() -> None:
    """Spare Python its last look through all of torch's objects, half a second. With Triton it has to look: its bindings would report a leak."""
    if "triton" not in sys.modules:
        gc.freeze()
