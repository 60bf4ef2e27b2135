"""Which modules of a model are attention, and which of them are known to be exact with a filter."""
