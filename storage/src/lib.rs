//! Datasets, checkpoints and the object store's keys.
