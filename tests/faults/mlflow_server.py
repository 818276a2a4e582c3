"""MLflow's own server, on and off at a moment's notice: `python mlflow_server.py FOLDER PORT`, SIGKILL ends it.

The application of `mlflow server` behind the standard library's HTTP server: it starts in the time of its imports and has no workers to outlive it.
"""

import os
import sys
import warnings
from pathlib import Path
from socketserver import ThreadingMixIn
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer


class Threaded(ThreadingMixIn, WSGIServer):
    daemon_threads = True


class Quiet(WSGIRequestHandler):
    def log_message(self, format: str, *args: object) -> None: ...


def main(folder: Path, port: int) -> None:
    warnings.simplefilter("ignore")
    os.environ["_MLFLOW_SERVER_FILE_STORE"] = f"sqlite:///{folder / 'mlflow.db'}"
    os.environ["_MLFLOW_SERVER_ARTIFACT_ROOT"] = (folder / "mlartifacts").as_uri()
    from mlflow.server import app

    server = Threaded(("127.0.0.1", port), Quiet)
    server.set_app(app)
    print("up", flush=True)
    server.serve_forever()


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
