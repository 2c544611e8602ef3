//! Collectives in a service on tokio, on one thread. `embed_tokio_current_thread [RANKS [SECONDS]]`: rank 1
//! is late for the last call.
#![forbid(unsafe_code)]

use std::process::ExitCode;

use brevity_examples::embed;

fn main() -> ExitCode {
    embed::main(|| {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        runtime.block_on(embed::on_tokio())
    })
}
