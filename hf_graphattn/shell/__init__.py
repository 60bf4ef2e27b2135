"""`graphattn`: what the library says of a model, from a shell."""
