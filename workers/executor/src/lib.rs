//! One process on one slot: trains the ranks it hosts.
