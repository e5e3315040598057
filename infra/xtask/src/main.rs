//! Contributor commands: dependency table, headers, demo servers.
fn main() {}
