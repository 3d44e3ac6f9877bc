import torch

from offrl.training.averages import Averages


def test_a_number_is_averaged_over_the_steps_that_have_it():
    averages = Averages(2)
    losses = []
    for step in range(6):
        info = {"loss": torch.tensor(float(step))}
        if step % 3 == 1:
            info["norm"] = torch.tensor(10.0 * step)
        averages.add_step(info)
        if step % 2:
            losses += averages.fold().tolist()
    assert losses == [0.0, 1.0, 2.0, 3.0, 4.0, 5.0]
    means = averages.mean()
    assert means["loss"] == 2.5
    assert means["norm"] == 25.0  # of the steps 1 and 4
