//! What computes gradients: the Engine trait, native models, optimizers.
