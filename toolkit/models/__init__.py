"""The articles' two models, and the loss they share."""

from torch import Tensor
from torch.nn import functional


def cross_entropy(logits: Tensor, targets: Tensor, label_smoothing: float = 0.0) -> Tensor:
    """[B, C] logits and [B] int64 class ids -> [B] losses in fp32, whatever the precision of the logits.

    `label_smoothing` is torch's: that share of each target is spread evenly over all C classes.
    """
    return functional.cross_entropy(logits.float(), targets, reduction="none", label_smoothing=label_smoothing)
