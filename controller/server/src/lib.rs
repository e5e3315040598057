//! The controller's hands: loop, recovery, agent streams.
