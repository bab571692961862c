"""The lines of docs/how-to/watch.md that give a run to W&B and MLflow, with the real packages."""

import re

import pytest
from jobs import ROOT

import wbsp
from wbsp.core.stats import Member

PAGE = (ROOT / "docs/how-to/watch.md").read_text()


@pytest.fixture
def lines(written, tmp_path):
    """lines(name): the page's lines with that name, for a run of three steps."""
    log, _ = written()
    member = Member(active=True)
    for second in (1, 2, 3):
        member.count(1, 100, 1.0, 0)
        log.training(second, second, 2.0 / second, 100, {0: member}, {})
    log.evaluation(3.0, 3, 0.5, 0.8, 0.9, {0: member}, {})
    log.evaluated(3.5, 3, {"rmse": 0.25}, {0: member})  # a reader's, without a loss
    log.flush()

    def of(name):
        blocks = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
        [text] = [block for block in blocks if f"{name}." in block]
        return text.replace("runs/pcc/run-001", str(tmp_path))
    return of


def test_mlflow_has_the_losses_of_a_run(lines, tmp_path, monkeypatch):
    mlflow = pytest.importorskip("mlflow", reason="MLflow is not installed: pip install mlflow")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    mlflow.set_tracking_uri((tmp_path / "mlruns").as_uri())
    with mlflow.start_run() as run:
        exec(lines("mlflow"), {"wbsp": wbsp, "mlflow": mlflow})
    client = mlflow.MlflowClient()
    history = client.get_metric_history(run.info.run_id, "training_loss")
    assert [(one.step, one.value) for one in history] == [(1, 2.0), (2, 1.0), (3, 2.0 / 3)]
    assert client.get_run(run.info.run_id).data.metrics["evaluation_loss"] == 0.5


def test_wandb_has_the_losses_of_a_run(lines, tmp_path, monkeypatch):
    wandb = pytest.importorskip("wandb", reason="W&B is not installed: pip install wandb")
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
    run = wandb.init(dir=tmp_path, project="wbsp")
    exec(lines("wandb"), {"wbsp": wbsp, "wandb": wandb})
    wandb.log({}, step=4)  # a step is complete when the next one begins
    kept = dict(run.summary)
    run.finish()
    assert kept["training/loss"] == 2.0 / 3 and kept["evaluation/loss"] == 0.5
    assert kept["version"] == 3
