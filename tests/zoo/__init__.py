"""A tiny random model of every model type of transformers, and a batch of inputs for it.

`models.build(model_type)` makes one from its config class alone, offline; `sizes` shrinks the
config by the names of its fields, `batches` reads the signature of the forward; `settings` and
`given` are tables of what these rules do not find. `runs.each` calls a check on many types, each
in a process of its own.
"""
