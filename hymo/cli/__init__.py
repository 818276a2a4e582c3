"""The command line: parse, call, print. Importing it costs no torch and no MLflow; each command imports what it uses."""

import atexit
import gc


def main() -> None:
    """Entry point of the `hymo` command."""
    from hymo.cli.app import main as run

    atexit.register(gc.freeze)  # or Python looks through all of torch's objects once more before it leaves: half a second
    run()
