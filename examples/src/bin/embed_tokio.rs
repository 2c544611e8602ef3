//! Collectives in a service on tokio, with its threads. `embed_tokio [RANKS [SECONDS]]`: rank 1 is late for
//! the last call.
#![forbid(unsafe_code)]

use std::process::ExitCode;

use brevity_examples::embed;

fn main() -> ExitCode {
    embed::main(|| tokio::runtime::Runtime::new()?.block_on(embed::on_tokio()))
}
