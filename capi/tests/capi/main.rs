//! The C interface as C and C++ programs see it: compiled with warnings as errors, linked, installed and run.
#![allow(clippy::unwrap_used, reason = "helpers of tests are tests")]

mod abi;
mod forks;
mod fronts;
mod groups;
mod header;
mod install;
mod joining;
mod list;
mod list_compressed;
mod listed;
mod listed_compressed;
mod messages;
mod osu;
mod ranks;
mod requests;
mod server;
mod solo;
mod stage;
