"""MLflow, and the only file that imports it: what a journal holds is brought to the tracking server, whenever that answers.

Training writes to the run's journal and never waits for a server. A thread of this process, a later run beside it, or `hymo sync` reads the journal
from where the last one stopped, sends it in batches, and notes how far it came. What was sent and not noted (the process died in between) is sent
again: a journal line keeps its timestamp, and the server keeps one row per (metric, step, time, value).
"""

from __future__ import annotations

import importlib.util
import json
import os
import threading
import time
import uuid
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from filelock import FileLock, Timeout

from hymo.environment import git_state
from hymo.errors import HymoError, MissingExtra
from hymo.facts import Facts, describe
from hymo.files import write_whole
from hymo.journal import Event, Journal, read

if TYPE_CHECKING:
    from mlflow.tracking import MlflowClient

    from hymo.recipe import Recipe
    from hymo.train.tracker import RunStart

BATCH_METRICS, BATCH_PARAMS = 1000, 100  # a server refuses more at once
PORT = 5000  # of `hymo ui`
PAUSE_S, LONGEST_PAUSE_S, PATIENCE_S = 2.0, 60.0, 20.0  # between sendings; at most, while nobody answers; for the last one of a run
VIEW = "hymo"  # the shared view of an experiment's page, whose table has these columns: {column: width}
COLUMNS = {
    **{"tags.`hymo.scale`": 90, "tags.`hymo.overrides`": 260},
    **dict.fromkeys((f"metrics.`{name}`" for name in ("val/loss", "val/bpb", "speed/tokens_per_s", "cost/params_active", "loss/main")), 130),
}
QUIET = {  # MLflow reads these when it is imported; what the user has set stands
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR": "false",
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1",  # we try again ourselves, and later
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "10",
    "MLFLOW_LOGGING_LEVEL": "CRITICAL",  # what it logs as an error it also raises, and we say it in a line
    "GIT_PYTHON_REFRESH": "quiet",
}
for _name, _value in QUIET.items():
    os.environ.setdefault(_name, _value)
STATUS = {"finished": "FINISHED", "stopped": "KILLED", "diverged": "FAILED", "failed": "FAILED"}


def address(tracking: str) -> str:
    """What `run.tracking` means here: `auto` is $MLFLOW_TRACKING_URI, or else mlflow.db in the working folder."""
    if tracking == "auto":
        tracking = os.environ.get("MLFLOW_TRACKING_URI") or "sqlite:///mlflow.db"
    database = local_database(tracking)
    return f"sqlite:///{database.absolute()}" if database else tracking


def local_database(tracking: str) -> Path | None:
    """The file behind a sqlite:/// address."""
    return Path(tracking.removeprefix("sqlite:///")) if tracking.startswith("sqlite:///") else None


def client(tracking: str) -> MlflowClient:
    """A quiet client of the store at `tracking`, its schema made if it is new. Several processes may ask at once."""
    if importlib.util.find_spec("mlflow") is None:
        raise MissingExtra("tracking needs MLflow, which is not installed; `pip install mlflow`, or set run.tracking=none")
    from mlflow.tracking import MlflowClient

    database = local_database(tracking)
    if database is None:
        return MlflowClient(tracking)
    with FileLock(f"{database}.lock"):  # first starts side by side would race through the migrations
        opened = MlflowClient(tracking)
        opened.search_experiments(max_results=1)
    return opened


class Shipper:
    """Brings the journal in `run_dir` to MLflow. `sent.json` beside it holds the run's id and the bytes sent so far."""

    def __init__(self, run_dir: Path) -> None:
        self.run_dir, self.journal, self.note = run_dir, run_dir / "journal.jsonl", run_dir / "sent.json"
        self._client: MlflowClient | None = None

    @property
    def sent(self) -> dict[str, Any]:
        """{"run_id", "experiment_id", "tracking", "offset"}, as far as known. A note that does not fit the journal counts for nothing: sending again
        doubles nothing."""
        try:
            note = {"offset": 0, **json.loads(self.note.read_bytes())}
            fits = not note["offset"] or ("run_id" in note and 0 < note["offset"] <= self.journal.stat().st_size)
        except (FileNotFoundError, ValueError, TypeError):
            fits = False
        return note if fits else {"offset": 0}

    @property
    def pending(self) -> int:
        """Bytes of the journal that the server has not got; none of a run that is not tracked."""
        first = next(read(self.journal), None) if self.journal.is_file() else None
        return self.journal.stat().st_size - int(self.sent["offset"]) if first and first[0]["tracking"] != "none" else 0

    def ship(self) -> int:
        """Send every line not sent yet and return their number. Raises whatever the server raises; what was sent before that is noted."""
        with FileLock(self.run_dir / "sent.lock", timeout=PATIENCE_S):
            lines = 0
            for events, offset in batches(self.journal, int(self.sent["offset"])):
                self._send(events)
                self._remember(offset=offset)
                lines += len(events)
            return lines

    def _remember(self, **facts: Any) -> None:
        write_whole(self.note, json.dumps({**self.sent, **facts}))

    def _send(self, events: list[Event]) -> None:
        from mlflow.entities import Metric

        first = events[0]
        if first["event"] == "start":
            self._start(first)
            return
        run_id = self.sent["run_id"]
        server = self._client = self._client or client(self.sent["tracking"])
        if first["event"] == "metrics":
            found = [Metric(name, value, e["time"], e["step"]) for e in events for name, value in e["values"].items()]
            for i in range(0, len(found), BATCH_METRICS):
                server.log_batch(run_id, metrics=found[i : i + BATCH_METRICS])
        elif first["event"] == "artifact":
            path = self.run_dir / first["path"]
            if path.exists():  # a rotated checkpoint may be gone by now
                send = server.log_artifacts if path.is_dir() else server.log_artifact
                send(run_id, str(path), first["folder"] or None)
        elif first["event"] == "finish":
            for name, value in first["tags"].items():
                server.set_tag(run_id, name, value)
            server.set_terminated(run_id, STATUS[first["status"]], first["time"])

    def _start(self, event: Event) -> None:
        """Make the run, or go on with the one that this journal made before."""
        from mlflow.entities import Dataset, DatasetInput, InputTag, Param
        from mlflow.tracking.context.registry import resolve_tags

        server = self._client = client(event["tracking"])
        experiment = experiment_id(server, event["tracking"], event["experiment"])
        known = server.search_runs([experiment], f"tags.`hymo.uid` = '{event['uid']}'", max_results=1)
        if known:
            run_id = known[0].info.run_id
            server.update_run(run_id, status="RUNNING")
        else:
            tags = {**resolve_tags(), **event["tags"], "hymo.uid": event["uid"]}
            if event["parent"]:
                tags["mlflow.parentRunId"] = self._parent(Path(event["parent"]))
            run_id = server.create_run(experiment, event["time"], tags, event["name"]).info.run_id
        params = [Param(name, value) for name, value in event["params"].items() if not known or name not in known[0].data.params]
        for i in range(0, len(params), BATCH_PARAMS):
            server.log_batch(run_id, params=params[i : i + BATCH_PARAMS])
        if event["dataset"]:  # the server keeps one of a kind
            dataset = Dataset(**event["dataset"])
            server.log_inputs(run_id, [DatasetInput(dataset, [InputTag("mlflow.data.context", "training")])])
        self._remember(run_id=run_id, experiment_id=experiment, tracking=event["tracking"])

    def _parent(self, folder: Path) -> str:
        """Id of the run that stands above this one, made first if the server has not seen it."""
        above = Shipper(folder)
        if "run_id" not in above.sent:
            above.ship()
        return str(above.sent["run_id"])


def batches(journal: Path, offset: int) -> Iterator[tuple[list[Event], int]]:
    """The journal's events from `offset` on: runs of metrics together, up to a server's batch, everything else alone."""
    metrics: list[Event] = []
    count, end = 0, offset
    for event, after in read(journal, offset):
        is_metrics = event["event"] == "metrics"
        if metrics and (not is_metrics or count + len(event["values"]) > BATCH_METRICS):
            yield metrics, end
            metrics, count = [], 0
        if is_metrics:
            metrics.append(event)
            count += len(event["values"])
        else:
            yield [event], after
        end = after
    if metrics:
        yield metrics, end


def experiment_id(server: MlflowClient, tracking: str, name: str) -> str:
    """Id of the experiment, made if new; a local store keeps its artifacts beside the database."""
    from mlflow.exceptions import MlflowException

    database = local_database(tracking)
    artifact_location = (database.resolve().parent / "mlartifacts" / quote(name, safe="").replace(".", "%2E")).as_uri() if database else None

    found = server.get_experiment_by_name(name)
    if found is not None:
        return str(found.experiment_id)
    try:
        made = str(server.create_experiment(name, artifact_location))
        view = {"selectedColumns": list(COLUMNS), "columnOrder": list(COLUMNS), "columnWidths": COLUMNS}
        server.set_experiment_tag(made, f"mlflow.sharedViewState.{VIEW}", json.dumps(view))
        return made
    except MlflowException:  # another process made it in the meantime
        found = server.get_experiment_by_name(name)
        if found is None:
            raise
        return str(found.experiment_id)


class MlflowTracker:
    """The Tracker (hymo/train/tracker.py) that keeps a journal and has a thread bring it to MLflow; under `run.tracking: none`, the journal only.

    `parent` is the run folder of the run above this one in MLflow's tree. `problem` says what keeps the server from taking the journal, if anything.
    """

    def __init__(self, recipe: Recipe | None, run_dir: Path, parent: Path | None = None, tags: Mapping[str, str] | None = None, *,
                 name: str | None = None, experiment: str = "hymo", tracking: str = "auto") -> None:
        self.recipe, self.run_dir, self.parent, self.tags = recipe, run_dir, parent, dict(tags or {})
        self.name = name or self.tags.get("mlflow.runName", run_dir.name)
        self.experiment = recipe.run.experiment if recipe else experiment
        self.tracking = address(recipe.run.tracking if recipe else tracking)
        self.shipper = Shipper(run_dir)
        self.problem: str | None = None
        self._journal = Journal(run_dir)
        self._wake, self._closing = threading.Event(), False
        self._thread = threading.Thread(target=self._work, name="hymo-tracking", daemon=True)

    # -- the Tracker protocol -----------------------------------------------------------------------------------------------------
    def start(self, info: RunStart | None = None) -> None:
        """Open the run, or the rest of it: what the recipe says, what it costs, where it runs, what it reads."""
        facts = describe(self.recipe, info) if self.recipe and info else Facts()
        self._journal.append(
            "start",
            uid=self._journal.uid or uuid.uuid4().hex,
            tracking=self.tracking,
            experiment=self.experiment,
            name=self.name,
            parent=str(self.parent.resolve()) if self.parent else None,
            params=facts.params,
            tags={**git_state(), **facts.tags, **self.tags, "hymo.folder": str(self.run_dir.resolve())},
            dataset=facts.dataset,
        )
        if (self.run_dir / "recipe.yaml").is_file():
            self.artifact(self.run_dir / "recipe.yaml")
        self._journal.metrics(0, facts.metrics)
        if self.tracking != "none":
            self._thread.start()

    def metrics(self, step: int, values: dict[str, float]) -> None:
        """Put metrics on record; a (name, step) that is on record already stays as it is."""
        self._journal.metrics(step, values)

    def vectors(self, step: int, values: dict[str, list[float]]) -> None:
        """Put vectors on record. They stay in the journal: MLflow would show a chart for each number."""
        self._journal.vectors(step, values)

    def artifact(self, path: Path, folder: str = "") -> None:
        """Attach a file or folder."""
        self._journal.append("artifact", path=os.path.relpath(path, self.run_dir), folder=folder)

    def text(self, text: str, name: str) -> None:
        """Attach a text under this name."""
        path = self.run_dir / "artifacts" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        self.artifact(path, os.path.dirname(name))

    def finish(self, status: str, tags: Mapping[str, str] | None = None) -> None:
        """Close the run, and give the server a last while to take what is left."""
        self._journal.append("finish", status=status, tags=dict(tags or {}))
        self._journal.close()
        self._closing = True
        self._wake.set()
        if self._thread.is_alive():
            self._thread.join(PATIENCE_S + PAUSE_S)
        if self.tracking != "none" and self.shipper.pending and self.problem is None:
            self.problem = f"it did not take everything within {PATIENCE_S:.0f} s"

    # -- the thread ---------------------------------------------------------------------------------------------------------------
    def _work(self) -> None:
        pause, deadline = PAUSE_S, float("inf")
        neighbours = False
        while True:
            try:
                self.shipper.ship()
                self.problem, pause = None, PAUSE_S
            except Exception as error:  # whatever a server, a proxy or a database raises: the journal keeps it all, and we try again
                self.problem, pause = " ".join(str(error).split())[:200] or type(error).__name__, min(2 * pause, LONGEST_PAUSE_S)
            if self._closing:
                deadline = min(deadline, time.monotonic() + PATIENCE_S)
                if (self.problem is None and not self.shipper.pending) or time.monotonic() > deadline:
                    return
                pause = PAUSE_S
            elif self.problem is None and not neighbours:
                neighbours = True
                sync(self.run_dir.parent)
            self._wake.wait(pause)
            self._wake.clear()

    @property
    def link(self) -> str | None:
        """Address of the run's page in the MLflow UI; None while the server has not seen the run."""
        return link(self.shipper.sent)


def sync(folder: Path) -> dict[str, int | str]:
    """Send what the journals of the run folders in `folder` still hold: {run folder: lines sent, or what kept the server from taking them}."""
    done: dict[str, int | str] = {}
    for journal in sorted(folder.glob("*/journal.jsonl")):
        shipper = Shipper(journal.parent)
        try:
            if shipper.pending:
                done[journal.parent.name] = shipper.ship()
        except Timeout:
            done[journal.parent.name] = "another process is sending it"
        except Exception as error:  # as in MlflowTracker._work
            done[journal.parent.name] = " ".join(str(error).split())[:200] or type(error).__name__
    return done


def attach(run_dir: Path, files: Iterable[Path], folder: str) -> str | None:
    """Add files to a run that has ended, by way of its journal; its page, or None when it is not tracked. Raises HymoError when the server does not
    take them: then they wait in the journal."""
    first = next(read(run_dir / "journal.jsonl"))[0]
    if first["tracking"] == "none":
        return None
    journal = Journal(run_dir)
    for path in files:
        journal.append("artifact", path=os.path.relpath(path, run_dir), folder=folder)
    journal.close()
    shipper = Shipper(run_dir)
    try:
        shipper.ship()
    except Exception as error:  # as in MlflowTracker._work
        reason = " ".join(str(error).split())[:200] or type(error).__name__
        raise HymoError(f"the tracking server must answer to take {folder}, but did not ({reason}); `hymo sync` sends them later") from None
    return link(shipper.sent)


def link(sent: Mapping[str, Any]) -> str | None:
    """A run's page. The UI of a local store is at this port once `hymo ui` runs."""
    if "run_id" not in sent:
        return None
    return f"{page(sent['tracking'])}/#/experiments/{sent['experiment_id']}/runs/{sent['run_id']}"


def table(tracking: str, port: int = PORT) -> str:
    """The page that compares the runs of the experiment that changed last."""
    known = client(tracking).search_experiments(max_results=2, order_by=["last_update_time DESC"])
    newest = next((found for found in known if found.name != "Default"), None)
    if newest is None:
        return f"{page(tracking, port)}/#/experiments?workflowType=machine_learning"
    shared = f"&viewStateShareKey={VIEW}" if f"mlflow.sharedViewState.{VIEW}" in newest.tags else ""
    return f"{page(tracking, port)}/#/experiments/{newest.experiment_id}/runs?workflowType=machine_learning{shared}"


def page(tracking: str, port: int = PORT) -> str:
    """Address of the UI: a server's own, or that of `hymo ui` for a local store."""
    return tracking if tracking.startswith("http") else f"http://127.0.0.1:{port}"


def folder_of(run_id: str, tracking: str) -> Path:
    """The folder of a run that MLflow knows by this id. Raises HymoError when it knows none, or hymo did not make it."""
    from mlflow.exceptions import MlflowException

    try:
        tags = client(tracking).get_run(run_id).data.tags
    except MlflowException:
        raise HymoError(f"a run must be known to this folder or to MLflow, but got {run_id!r}; `hymo runs` lists them") from None
    if "hymo.folder" not in tags:
        raise HymoError(f"a run must have been made by hymo, but got {run_id!r}, which names no run folder")
    return Path(tags["hymo.folder"])
