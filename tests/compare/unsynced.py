"""BatchNorm on two ranks, twice: with statistics averaged over the ranks, and with each rank's own.

unsynced.py --output_dir FOLDER
"""

import sys

import toolkit


def main():
    folder = sys.argv.pop()
    for name in ("averaged", "alone"):
        train([*sys.argv[1:], f"{folder}/{name}", "--save_initial", "true"], averaged=name == "averaged")


def train(argv, averaged):
    defaults = {"train_batch_size": 16, "optimizer": "sgd", "learning_rate": 0.05, "max_train_steps": 6}
    arguments = toolkit.parse_arguments(argv, description=__doc__, defaults=defaults)
    setup = toolkit.Setup.from_run(arguments)

    import torch
    from torch import nn
    from torch.utils.data import TensorDataset

    drawn = torch.Generator().manual_seed(0)
    inputs = torch.randn(96, 4, generator=drawn)
    targets = (inputs.sum(1) > 0).long()
    data = toolkit.Data(TensorDataset(inputs, targets), TensorDataset(inputs[:16], targets[:16]))

    def model_fn():
        return nn.Sequential(nn.Linear(4, 8, bias=False), nn.BatchNorm1d(8), nn.GELU(), nn.Linear(8, 2))

    engine = toolkit.prepare(model_fn, toolkit.cross_entropy, toolkit.optimizer_from(setup), setup)
    if not averaged:
        engine.sync_buffers = lambda: None
    toolkit.fit(engine, data, arguments)


if __name__ == "__main__":
    toolkit.run(main)
