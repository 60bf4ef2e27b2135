"""What people do with a patched model: read its filters, its configs, report it, train it."""
