r"""TensorBoard reads what was logged, and of a run that goes on every step once."""

import pytest

from limbeck.training.callbacks import TensorBoard
from tests.refusals import refused
from tests.training.short import CutError, distilled

accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
pytest.importorskip("torch.utils.tensorboard")


def scalars(folder, name):
    (place,) = folder.iterdir()
    events = accumulator.EventAccumulator(str(place)).Reload()
    return [(event.step, event.value) for event in events.Scalars(name)], events.Tags()


def test_scalars_are_the_history(tmp_path):
    result = distilled(TensorBoard(tmp_path))
    for name, values in result.history.items():
        if name != "step":
            found, tags = scalars(tmp_path, name)
            assert [step for step, _ in found] == result.history["step"]
            assert [value for _, value in found] == pytest.approx(values)
    assert "settings/text_summary" in tags["tensors"]


def test_a_run_that_goes_on_has_every_step_once(tmp_path):
    logs, kept = tmp_path / "logs", tmp_path / "kept"
    with pytest.raises(CutError):
        distilled(TensorBoard(logs), kept, 12, cut=3)
    assert [step for step, _ in scalars(logs, "loss")[0]] == [2, 4, 6]
    result = distilled(TensorBoard(logs), kept, 12)
    found, _ = scalars(logs, "loss")
    assert [step for step, _ in found] == result.history["step"] == [2, 4, 6, 8, 10, 12]
    assert [value for _, value in found] == pytest.approx(result.history["loss"])


def test_a_place_that_cannot_be_is_refused_before_the_first_step(tmp_path):
    (tmp_path / "file").write_text("")
    with refused("callbacks", "TensorBoard"):
        distilled(TensorBoard(tmp_path / "file"))
