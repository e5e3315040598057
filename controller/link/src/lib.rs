//! The stream between controller and node agents.
