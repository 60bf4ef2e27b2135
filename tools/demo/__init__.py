"""How the checkpoints in finetune/demo were pretrained and measured; the README there says more."""
