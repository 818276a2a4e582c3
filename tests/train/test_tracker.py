from pathlib import Path

from hymo.tracking import MlflowTracker
from hymo.train import NullTracker, RunStart, Tracker


def test_every_tracker_takes_the_same_calls(tmp_path: Path) -> None:
    def tell(tracker: Tracker) -> None:
        tracker.start(RunStart(0, 1, {"device": "cpu"}, {"source": "x"}))
        tracker.metrics(1, {"loss/main": 1.0})
        tracker.vectors(1, {"moe/load/M0": [0.5, 0.5]})
        tracker.artifact(tmp_path)
        tracker.text("text", "name.txt")
        tracker.finish("finished")

    tell(NullTracker())
    for name in ("start", "metrics", "vectors", "artifact", "text", "finish"):
        assert callable(getattr(MlflowTracker, name)), name
