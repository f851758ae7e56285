"""MLflow, in local files unless MLFLOW_TRACKING_URI names a server. Needs the extra `mlflow`."""

from __future__ import annotations

import os

from .base import Run, Scalars, missing

try:
    from mlflow import MlflowClient
except ImportError as error:
    raise missing("mlflow", error) from error

EXPERIMENT = "holdfast"


class MLflow(Scalars):
    """Writes into the folder `mlruns` beside the run's folder, so that all runs are in one experiment."""

    def __init__(self, run: Run) -> None:
        super().__init__(run)
        # MLflow 3 wants a database unless this is set; its small package, mlflow-skinny, has none.
        os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")
        beside = (run.folder.parent / "mlruns").resolve()
        self.client = MlflowClient(os.environ.get("MLFLOW_TRACKING_URI", beside.as_uri()))
        known = self.client.get_experiment_by_name(EXPERIMENT)
        experiment = self.client.create_experiment(EXPERIMENT) if known is None else known.experiment_id
        self.id = self._id(experiment)
        self.ended = False

    def _id(self, experiment: str) -> str:
        """Return the id of this run: the one of before if it resumes."""
        before = self.client.search_runs([experiment], f"tags.mlflow.runName = '{self.run.name}'", max_results=1)
        if before:
            self.client.update_run(before[0].info.run_id, status="RUNNING")
            return str(before[0].info.run_id)
        made = self.client.create_run(experiment, run_name=self.run.name)
        for name, value in self.run.config.items():
            self.client.log_param(made.info.run_id, name, value)
        return str(made.info.run_id)

    def write(self, values: dict[str, float], step: int) -> None:
        for name, value in values.items():
            self.client.log_metric(self.id, name, value, step=step)

    def summarise(self, values: dict[str, float]) -> None:
        for name, value in values.items():
            self.client.log_metric(self.id, f"result/{name}", value)
        self.ended = True

    def close(self) -> None:
        self.client.set_terminated(self.id, "FINISHED" if self.ended else "KILLED")
