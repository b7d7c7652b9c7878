"""Workers of torchdata's loader, which waits for each of them, end at once with a round."""

import pytest
from loader_ends import Numbers, Stubborn, assert_nobody_waits_for_its_workers
from torchdata.stateful_dataloader import StatefulDataLoader

# What torchdata asks of torch.
pytestmark = pytest.mark.filterwarnings("ignore:'set_vital' is deprecated")


@pytest.mark.parametrize("data", [Numbers(), Stubborn()], ids=["idle", "busy"])
def test_a_loader_that_is_collected_does_not_wait_for_its_workers(data: Numbers) -> None:
    assert_nobody_waits_for_its_workers(StatefulDataLoader, data)
