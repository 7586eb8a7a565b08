"""Fine-tune BERT on texts, under whichever setup the launcher and the config files choose."""

from __future__ import annotations

from typing import Any

import toolkit

DEFAULTS = {
    "train_batch_size": 32,
    "optimizer": "adamw",
    "learning_rate": 1e-4,
    "weight_decay": 0.01,
    "lr_scheduler_type": "linear",
    "num_warmup_steps": 20,
    "num_train_epochs": 1,
    "max_train_samples": 6000,
    "max_length": 128,
    "dropout": 0.1,
    "group_by_length": True,
}
# Shared arguments that mean nothing here: refused when given, so that none is silently ignored.
UNUSED = (
    "image_column_name",
    "image_size",
    "normalization",
    "augment",
    "augment_kwargs",
    "show_augmentations",
    "on_bad_sample",
)


def main() -> None:
    # Arguments and setup: refused here, before anything is loaded.
    arguments = toolkit.parse_arguments(description=__doc__, defaults=DEFAULTS, unused=UNUSED)
    setup = toolkit.Setup.from_run(arguments)

    # Data
    from toolkit.data.text import text_data
    from toolkit.models.bert import default_model, load_bert, load_tokenizer

    name = arguments.model_name_or_path
    if name is None:
        name, line = default_model()
        toolkit.say(line)
    data = text_data(arguments, load_tokenizer(name), setup)
    toolkit.say(data.description)

    # Model
    def model_fn() -> Any:
        return load_bert(name, label_names=data.label_names, dropout=arguments.dropout)

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
