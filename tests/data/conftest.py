from argparse import Namespace
from collections.abc import Callable
from typing import Any

import pytest

NAMES = (
    "dataset_name dataset_config_name train_file validation_file text_column_name text_pair_column_name "
    "image_column_name label_column_name max_train_samples max_eval_samples max_length image_size on_bad_sample "
    "streaming shuffle_buffer_size encoding augment_kwargs normalization"
)


@pytest.fixture
def arguments() -> Callable[..., Namespace]:
    """Arguments as the scripts' parser gives them when only these were typed."""

    def given(**typed: Any) -> Namespace:
        return Namespace(**{**dict.fromkeys(NAMES.split()), "seed": 0, **typed})

    return given


@pytest.fixture(scope="session")
def tokenizer() -> Any:
    """A BERT tokenizer of a few words."""
    from transformers import BertTokenizer

    words = "[PAD] [UNK] [CLS] [SEP] [MASK] a b c d na null none 007 true good bad film".split()
    return BertTokenizer(vocab={word: number for number, word in enumerate(words)}, model_max_length=16)
