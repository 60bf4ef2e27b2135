"""GFSA in a plain torch model, `nn.TransformerEncoder`: patched, trained, saved, loaded.

    python examples/torch_encoder.py

The task: is a number's double in the sequence too? Plain torch, no data to download.
"""

import tempfile

import torch
from torch import nn

import hf_graphattn as ga


class Classifier(nn.Module):
    def __init__(self, numbers: int = 32, width: int = 64) -> None:
        super().__init__()
        self.embed = nn.Embedding(numbers, width)
        layer = nn.TransformerEncoderLayer(width, 4, 128, dropout=0.0, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 3)
        self.head = nn.Linear(width, 2)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.head(self.encoder(self.embed(ids)).mean(1))


def batch(size: int) -> tuple[torch.Tensor, torch.Tensor]:
    ids = torch.randint(1, 32, (size, 8))
    return ids, ((2 * ids)[:, :, None] == ids[:, None]).any((1, 2)).long()


def main(steps: int = 200) -> None:
    torch.manual_seed(0)
    model = ga.patch_model(Classifier(), ga.GFSAConfig(order=4))
    groups = ga.optimizer_groups(model, 1e-3, filter_learning_rate=1e-2)
    optimizer = torch.optim.AdamW(groups)
    for step in range(1, steps + 1):
        ids, labels = batch(64)
        loss = nn.functional.cross_entropy(model(ids), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 100 == 0:
            print(f"step {step}: loss {loss:.3f}")
    print(ga.report(model))
    ids, labels = batch(1000)
    right = (model.eval()(ids).argmax(-1) == labels).float().mean()
    print(f"accuracy on 1000 new sequences: {right:.3f}")

    with tempfile.NamedTemporaryFile() as file:
        torch.save(model.state_dict(), file.name)  # the filters' scalars are in it
        again = ga.patch_model(Classifier(), ga.GFSAConfig(order=4)).eval()
        again.load_state_dict(torch.load(file.name))
    assert torch.equal(again(ids), model(ids))


if __name__ == "__main__":
    main()
