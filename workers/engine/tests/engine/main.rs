//! What the engine computes, to the bit and beside differences.
#![allow(clippy::unwrap_used)]

mod bits;
mod gradients;
mod support;
