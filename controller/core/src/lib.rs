//! The pure brain: decide, apply, effects, invariants, policies.
