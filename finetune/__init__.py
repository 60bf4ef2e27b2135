"""Fine-tuning scripts on one shared engine."""
