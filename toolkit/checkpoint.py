"""What a run keeps of the model: its weights by the model's own names."""

from __future__ import annotations

from pathlib import Path

from toolkit.engines import Engine


def save_weights(engine: Engine, folder: Path) -> None:
    """Write `model.safetensors` with every parameter and saved buffer, whole, in fp32 or its own dtype.

    Into a temporary folder that is renamed: it is there whole or not at all. Collective; rank 0 holds the model in
    memory and writes.
    """
    from safetensors.torch import save_file

    state = {}
    for name, tensor in engine.named_state():
        if engine.setup.rank == 0:
            state[name] = tensor.contiguous()
    if engine.setup.rank == 0:
        temporary = folder.with_name(f".{folder.name}.tmp")
        temporary.mkdir(parents=True)
        save_file(state, temporary / "model.safetensors", metadata={"format": "pt"})
        temporary.rename(folder)
