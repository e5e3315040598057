//! One per server: starts, watches and stops executors.
