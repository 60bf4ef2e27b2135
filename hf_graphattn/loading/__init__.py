"""How patched models, filters alone and adapters are loaded."""
