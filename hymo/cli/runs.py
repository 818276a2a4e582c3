"""`runs`, `sync`, `ui`: what was run, and MLflow's page of it."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from hymo.cli.common import Json, Output, console, print_json
from hymo.errors import HymoError

app = typer.Typer()
MLFLOW_ID = 32  # hex digits
Tracking = Annotated[str, typer.Option("--tracking", metavar="URI", help="MLflow store; `auto`: $MLFLOW_TRACKING_URI, or mlflow.db in this folder")]


@app.command()
def runs(output: Output = Path("runs"), json: Json = False) -> None:
    """List the runs of this folder."""
    from hymo.runs import list_runs

    found = list_runs(output)
    if json:
        for run in found:
            print_json({**asdict(run), "folder": str(run.folder), "name": run.name, "metrics": run.metrics})
        return
    if not found:
        typer.echo(f"no runs in {output}/ yet; `hymo run` makes one")
        return
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    for title in ("run", "started", "status", "step", "val loss", "val bpb", "mlflow run"):
        table.add_column(title, justify="right" if title in ("step", "val loss", "val bpb") else "left", no_wrap=True)
    for run in found:
        started = time.strftime("%Y-%m-%d %H:%M", time.localtime(run.started / 1000))
        scores = (f"{run.metrics[key]:.4f}" if key in run.metrics else "" for key in ("val/loss", "val/bpb"))
        page = "" if run.status == "imported" else (run.run_id or "not sent yet")[:12]
        table.add_row(run.name, started, run.status, f"{run.step:,}", *scores, page)
    console().print(table)


def folder_of(run: str, output: Path) -> Path:
    """The folder of the run that is named on a command line; asks MLflow when this folder does not know it. Raises HymoError."""
    from hymo.runs import RECIPE, find, unknown

    folder = find(run, output)
    if folder is None and len(run) == MLFLOW_ID and set(run) <= set("0123456789abcdef"):
        from hymo import tracking

        folder = tracking.folder_of(run, tracking.address("auto"))
    if folder is None:
        raise unknown(run, output)
    if not (folder / RECIPE).is_file():
        raise HymoError(f"a run folder must hold {RECIPE}, but got {str(folder)!r}, which does not; it was moved or is no run of hymo's")
    return folder


@app.command()
def sync(output: Output = Path("runs")) -> None:
    """Send MLflow what it missed while it was down. Every journal goes on where it stopped."""
    from hymo import tracking

    done = tracking.sync(output)
    for name, result in done.items():
        typer.echo(f"{name}: {result} lines sent" if isinstance(result, int) else f"{name}: not sent, {result}")
    if not done:
        typer.echo(f"nothing to send from {output}/")
    if any(isinstance(result, str) for result in done.values()):
        raise HymoError("a tracking server must answer to get the rest; `hymo sync` goes on from here")


@app.command()
def ui(
    port: Annotated[int, typer.Option("--port", min=1, max=65535, help="port on 127.0.0.1")] = 5000,
    tracking: Tracking = "auto",
) -> None:
    """Start MLflow's page of this folder's runs. It is on 127.0.0.1 only, and Ctrl-C ends it."""
    from hymo.tracking import address, table

    store = address(tracking)
    if store.startswith("http"):
        typer.echo(f"the store is a server already: {table(store)}")
        return
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            raise HymoError(f"the port must be free, but got {port=}, which another program holds; choose one with --port") from None
    where = table(store, port)  # makes the schema of a new store, too
    place = ["--backend-store-uri", store, "--host", "127.0.0.1", "--port", str(port)]
    quiet = ["--workers", "1", "--uvicorn-opts", "--log-level warning"]
    for ending in (signal.SIGINT, signal.SIGTERM):  # a shell starts background jobs with SIGINT ignored
        signal.signal(ending, signal.default_int_handler)
    server = subprocess.Popen(
        [sys.executable, "-W", "ignore", "-m", "mlflow", "ui", *place, *quiet],
        env={
            **os.environ,
            "MLFLOW_LOGGING_LEVEL": "ERROR",  # a server has nobody else to say it
            "PYTHONWARNINGS": "ignore",  # its workers do not hear of -W
            "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false",  # seven processes that only MLflow's GenAI half uses
        },
        start_new_session=True,  # so that all of it can be ended together
    )
    try:
        typer.echo(f"MLflow on {store}; it takes some ten seconds to start, and Ctrl-C ends it")
        typer.echo(f"open {where}")
        code = server.wait()
    except KeyboardInterrupt:
        os.killpg(server.pid, signal.SIGTERM)
        server.wait()
        return
    if code:
        raise HymoError(f"MLflow's page must stay up, but it ended with {code=}; its own words are above")
