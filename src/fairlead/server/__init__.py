"""The live control plane: one process that holds the loop, a durable store and the interfaces people use."""
