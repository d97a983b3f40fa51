r"""MLflow holds settings, metrics and how a run ended, and takes a run up that goes on."""

import pytest

from limbeck.training.callbacks import MLflow
from tests.refusals import refused
from tests.training.short import CutError, distilled

tracking = pytest.importorskip("mlflow.tracking")


@pytest.fixture
def uri(tmp_path, monkeypatch):
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")  # newer versions ask for a yes
    return (tmp_path / "store").as_uri()


def runs(uri):
    client = tracking.MlflowClient(tracking_uri=uri)
    place = client.get_experiment_by_name("limbeck").experiment_id
    return client, client.search_runs([place])


def metric(client, run, name):
    found = client.get_metric_history(run.info.run_id, name)
    return sorted((each.step, each.value) for each in found)


def test_metrics_are_the_history_and_parameters_the_settings(uri):
    result = distilled(MLflow(uri=uri))
    client, (run,) = runs(uri)
    for name, values in result.history.items():
        if name != "step":
            expected = list(zip(result.history["step"], values, strict=True))
            assert metric(client, run, name) == expected
    assert run.data.params["seed"] == "0"
    assert run.data.params["loss"] == result.settings["loss"]
    assert run.data.tags["limbeck.stopped"] == result.stop_reason
    assert run.info.status == "FINISHED"


def test_a_run_that_goes_on_is_the_same_run(uri, tmp_path):
    with pytest.raises(CutError):
        distilled(MLflow(uri=uri), tmp_path / "kept", 12, cut=3)
    assert [run.info.status for run in runs(uri)[1]] == ["KILLED"]
    result = distilled(MLflow(uri=uri), tmp_path / "kept", 12)
    client, (run,) = runs(uri)
    expected = list(zip(result.history["step"], result.history["loss"], strict=True))
    assert metric(client, run, "loss") == expected
    assert run.info.status == "FINISHED"


def test_a_store_that_cannot_be_is_refused_before_the_first_step():
    with refused("callbacks", r"MLflow\('limbeck'\)"):
        distilled(MLflow(uri="nonsense://nowhere"))
