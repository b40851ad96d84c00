"""Memory beside what torch allocates here, and the command. The published figures are in test_page.py."""

import pytest

from tests.support.commands import told


def test_the_command_without_torch():
    assert told("validate", "memory", "--no-measure")["mape"] < 0.05


@pytest.mark.parametrize("recompute", ["none", "full", "operators"])
def test_torch_allocates_what_is_predicted(recompute):
    pytest.importorskip("torch")
    from emulator.lab.validation.memory import measure

    case = measure.Case(measure.gpt(2, 64, 32, 256), "fp32", "adam", recompute, 4)
    assert measure.predicted(case) == pytest.approx(measure.measured(case), rel=0.02)


def test_a_convolutional_network():
    pytest.importorskip("torch")
    from emulator.lab.validation.memory import measure

    case = measure.Case(None, "fp32", "sgd", "none", 4)
    assert measure.predicted(case) == pytest.approx(measure.measured(case), rel=0.05)


def test_the_tracker_counts_storages_once_and_until_they_go():
    torch = pytest.importorskip("torch")
    from host_agent.memory.tracker import Tracker

    with Tracker() as tracker:
        one = torch.zeros(100)
        view = one[10:]
        assert tracker.now == 400
        del one
        assert tracker.now == 400, "the view keeps it"
        two = view + 1
        del view, two
        assert (tracker.now, tracker.peak) == (0, 760)
