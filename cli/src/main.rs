//! The `brevity` command.
fn main() {}
