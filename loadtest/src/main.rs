//! Drivers that replay demand against a running Ebb.
fn main() {}
