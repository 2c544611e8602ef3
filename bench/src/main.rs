//! `bench/compare`, and the processes that it measures.
#![forbid(unsafe_code)]

use std::path::PathBuf;
use std::process::ExitCode;

use brevity_bench::compare::{self, CollectivesArguments, Does, RowArguments, SparseArguments};
use brevity_bench::floor::{self, Patience};
use brevity_bench::order::Over;
use brevity_bench::output::UNREAD;
use brevity_bench::perf::Dtype;
use brevity_bench::seat::Like;
use brevity_bench::server::{self, ServerArguments};
use brevity_bench::{Result, seat};
use clap::{Parser, Subcommand};

/// Brevity and other libraries, in turns.
#[derive(Parser)]
#[command(name = "bench/compare", version)]
struct Command {
    #[command(subcommand)]
    action: Action,
}

#[derive(Subcommand)]
enum Action {
    /// Compare messages between ranks with those of other libraries
    P2p(RowArguments),
    Collectives(CollectivesArguments),
    Sparse(SparseArguments),
    /// Compare calls through the C interface with the same calls in Rust
    Ffi(RowArguments),
    Server(ServerArguments),
    /// Draw the figures of a run once more, beside them.
    Draw {
        /// What `--json` or a run that is kept has written
        file: PathBuf,
    },
    /// A rank of ours that waits for orders at a socket.
    #[command(hide = true)]
    Rank {
        socket: PathBuf,
        #[arg(long = "poll")]
        polls: bool,
        #[arg(long, conflicts_with = "polls")]
        messages: bool,
        #[arg(long, value_enum, default_value_t)]
        over: Over,
        #[arg(long)]
        unwritten: bool,
    },
    /// A rank of ours that measures collectives, and waits for orders at a socket.
    #[command(hide = true)]
    CollectivesRank {
        socket: PathBuf,
        dtype: Dtype,
    },
    /// A rank of ours that does steps of exchanges, and waits for orders at a socket.
    #[command(hide = true)]
    SparseRank {
        socket: PathBuf,
        does: Does,
        gradients: String,
        how: String,
    },
    /// A rank of a parameter server that waits for orders at a socket.
    #[command(hide = true)]
    ServerRank {
        socket: PathBuf,
        #[arg(long)]
        density: f64,
    },
    /// An end of a pair of bare sockets that waits for orders at a socket.
    #[command(hide = true)]
    Floor {
        socket: PathBuf,
        rank: u32,
        ranks: u32,
        #[arg(long = "yield")]
        yielding: bool,
    },
}

fn main() -> ExitCode {
    match run(Command::parse().action) {
        Ok(_) => ExitCode::SUCCESS,
        Err(error) => {
            if error.status() != UNREAD {
                eprintln!("bench: {error}");
            }
            error.status().into()
        }
    }
}

/// Does one thing; whether all bars were met.
fn run(action: Action) -> Result<bool> {
    match action {
        Action::P2p(arguments) => compare::p2p(&arguments),
        Action::Ffi(arguments) => compare::ffi(&arguments),
        Action::Collectives(arguments) => compare::collectives(&arguments),
        Action::CollectivesRank { socket, dtype } => compare::serve(&socket, dtype).map(|()| true),
        Action::Sparse(arguments) => compare::sparse(&arguments),
        Action::SparseRank { socket, does, gradients, how } => {
            compare::serve_sparse(&socket, does, &gradients, &how).map(|()| true)
        }
        Action::Server(arguments) => server::server(&arguments),
        Action::Draw { file } => compare::redraw(&file).map(|()| true),
        Action::Rank { socket, polls, messages, over, unwritten } => {
            let like = if messages { Like::Messages } else { Like::Engine };
            let like = if polls { Like::Polls } else { like };
            seat::serve(&socket, like, over, unwritten).map(|()| true)
        }
        Action::ServerRank { socket, density } => server::serve(&socket, density).map(|()| true),
        Action::Floor { socket, rank, ranks, yielding } => {
            let patience = if yielding { Patience::Yield } else { Patience::Poll };
            floor::serve(&socket, (rank, ranks), patience).map(|()| true)
        }
    }
}
