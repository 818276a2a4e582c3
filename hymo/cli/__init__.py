"""The command line: parse, call, print. Importing it costs no torch and no MLflow; each command imports what it uses."""


def main() -> None:
    """Entry point of the `hymo` command."""
    from hymo.cli.app import main as run

    run()
