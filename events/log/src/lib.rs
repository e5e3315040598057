//! The log: one trait, an embedded, an in-memory and a Kafka implementation, one contract suite.
