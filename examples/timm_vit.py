"""GFSA in a ViT of timm, on random images: patched after a check, trained for some steps.

pip install timm
python examples/timm_vit.py
"""

import timm
import torch

import hf_graphattn as ga


def main(name: str = "vit_tiny_patch16_224", steps: int = 5) -> None:
    torch.manual_seed(0)
    model = timm.create_model(name, img_size=64, num_classes=10)  # or pretrained=True
    images, labels = torch.randn(8, 3, 64, 64), torch.randint(10, (8,))
    ga.patch_model(model, ga.GFSAConfig(order=4, w_0=-0.01), check={"x": images})
    optimizer = torch.optim.AdamW(ga.optimizer_groups(model, 1e-4, filter_learning_rate=1e-2))
    for _ in range(steps):
        loss = torch.nn.functional.cross_entropy(model(images), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(f"loss {loss:.3f}")
    print(ga.report(model))


if __name__ == "__main__":
    main()
