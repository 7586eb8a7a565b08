"""The articles' two models, and the loss they share."""

from torch import Tensor
from torch.nn import functional


def cross_entropy(logits: Tensor, targets: Tensor) -> Tensor:
    """[B, C] logits and [B] int64 class ids -> [B] losses in fp32, whatever the precision of the logits."""
    return functional.cross_entropy(logits.float(), targets, reduction="none")
