//! The membership protocol and the canonical reduction, without I/O.
