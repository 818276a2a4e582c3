"""Running the runs of a plan on a Ray cluster: `--on ray` starts one on this machine, `--on ray:ADDRESS` joins one. Needs hymo[ray].

Every host must see the store (a shared folder): claims, checkpoints and outcomes are files there, as they are for local workers. Ray decides where
a run goes and runs it again, from its last checkpoint, when its process or host dies.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from hymo.ablate.engine import POLL_S, RETRIES, worker_environment
from hymo.ablate.store import RunSpec, Status, Store
from hymo.errors import AblationError, MissingExtra


class RayEngine:
    """One Ray task a run; at most `jobs` at a time on a cluster of our own, as many as it has room for on one that we join."""

    def __init__(self, store: Store, jobs: int, address: str | None, gpus: float) -> None:
        try:
            import ray
        except ImportError:
            raise MissingExtra("--on ray needs Ray, which is not installed; `pip install 'hymo[ray]'`") from None
        self.ray, self.store, self.jobs, self.address, self.gpus = ray, store, jobs, address, gpus

    def __call__(self, specs: Sequence[RunSpec], session: str, progress: Callable[[], None]) -> None:
        waiting = [spec for spec in specs if self.store.resolved(spec.key, session) is None]
        if not waiting:
            return
        for spec in waiting:
            self.store.write_spec(spec)
        with self._cluster(waiting[0].threads):
            task = self.ray.remote(max_retries=RETRIES)(_work)
            pending = {
                task.options(num_cpus=spec.threads, num_gpus=self.gpus).remote(str(self.store.root), spec.key, session): spec for spec in waiting
            }
            while pending:
                done, _ = self.ray.wait(list(pending), num_returns=1, timeout=POLL_S)
                for reference in done:
                    self._settle(reference, pending.pop(reference), session)
                progress()

    def _settle(self, reference: Any, spec: RunSpec, session: str) -> None:
        """Put on record a run that Ray gave up."""
        try:
            self.ray.get(reference)
        except self.ray.exceptions.RayError as error:
            if self.store.resolved(spec.key, session) is None:
                memory = isinstance(error, self.ray.exceptions.OutOfMemoryError)
                words = " ".join(str(error).split())[:300]
                self.store.write_failure(spec.key, session, Status.OUT_OF_MEMORY if memory else Status.FAILED, f"Ray gave it up: {words}")

    @contextmanager
    def _cluster(self, threads: int) -> Iterator[None]:
        """Ray for the time of the ablation; one that was there before stays."""
        if self.ray.is_initialized():
            yield
            return
        options: dict[str, Any] = {"address": self.address} if self.address else {"num_cpus": self.jobs * threads, "include_dashboard": False}
        environment = {"PYTHONPATH": worker_environment()["PYTHONPATH"], "OMP_NUM_THREADS": str(threads)}
        try:
            self.ray.init(log_to_driver=False, logging_level=logging.ERROR, runtime_env={"env_vars": environment}, **options)
        except (ConnectionError, ValueError) as error:
            raise AblationError(
                f"--on ray:ADDRESS must be a Ray cluster that answers, but got {self.address!r}: {' '.join(str(error).split())[:200]}"
            ) from None
        try:
            yield
        finally:
            self.ray.shutdown()


def _work(root: str, key: str, session: str) -> None:
    """The task: compute one run, or wait for whoever is computing it."""
    from hymo.ablate.worker import work_on

    work_on(Store(Path(root)), [key], session)
