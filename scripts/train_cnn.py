"""Train the article's CNN, or fine-tune a larger image model, under whichever setup the launcher and the config files
choose.
"""

from __future__ import annotations

import argparse
from typing import Any

import toolkit
from toolkit.kinds import real

DEFAULTS = {
    "train_batch_size": 64,
    "optimizer": "adamw",
    "learning_rate": 1e-3,
    "weight_decay": 0.0,
    "lr_scheduler_type": "linear",
    "num_train_epochs": 4,
}
# Shared arguments that mean nothing here: refused when given, so that none is silently ignored.
UNUSED = ("text_column_name", "text_pair_column_name", "max_length", "group_by_length")
LAYERS = 4  # that a pipeline can cut: stem, body, hidden, head
OWN_MODEL = ("norm", "activation", "pooling", "width", "depthwise", "normalization")  # not of --model_name_or_path


def own_arguments(group: argparse._ArgumentGroup) -> None:
    group.add_argument("--norm", choices=("none", "group", "batch"), default="none", help="after each convolution")
    group.add_argument(
        "--activation", choices=("relu", "gelu"), default="relu", help="relu, as in the article, or gelu"
    )
    group.add_argument("--pooling", choices=("max", "avg"), default="max", help="max (the article's) or avg")
    group.add_argument(
        "--width", type=real(0, above=True), default=1.0, metavar="FACTOR", help="times 32, 64 and 512 channels"
    )
    group.add_argument("--depthwise", action="store_true", help="second convolution by channel, then 1x1 (MobileNet)")


def main() -> None:
    # Arguments and setup: refused here, before anything is loaded.
    arguments = toolkit.parse_arguments(
        description=__doc__, defaults=DEFAULTS, extra=own_arguments, unused=UNUSED, own_model=OWN_MODEL, layers=LAYERS
    )
    setup = toolkit.Setup.from_run(arguments)

    # Data
    from toolkit.data.images import image_data
    from toolkit.models.vision import load_processor, load_vision

    name = arguments.model_name_or_path
    processor = load_processor(name, arguments.image_size, stages=setup.stages) if name is not None else None
    data = image_data(arguments, processor, setup)
    toolkit.say(data.description)

    # Model
    from toolkit.models.cnn import CNN

    def model_fn() -> Any:
        if processor is not None:
            return load_vision(name, processor, label_names=data.label_names, dropout=arguments.dropout)
        return CNN(
            data.channels,
            data.image_size,
            data.num_labels,
            norm=arguments.norm,
            activation=arguments.activation,
            pooling=arguments.pooling,
            width=arguments.width,
            dropout=arguments.dropout or 0.0,
            mean=data.mean,
            std=data.std,
            depthwise=arguments.depthwise,
        )

    # Loss and optimizer
    optimizer_fn = toolkit.optimizer_from(setup)
    engine = toolkit.prepare(model_fn, toolkit.cross_entropy, optimizer_fn, setup)

    # Train
    from toolkit.metrics import F1, Accuracy, ConfusionMatrix, Examples, PerClass

    names = data.label_names
    metrics = [Accuracy(), F1(), ConfusionMatrix(names), PerClass(names), Examples(names)]
    toolkit.fit(engine, data, arguments, metrics)


if __name__ == "__main__":
    toolkit.run(main)
