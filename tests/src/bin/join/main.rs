//! One rank of a job that is started without a launcher: `join RANK WORLD_SIZE FILE TRANSPORT`.
//!
//! Rank 0 writes its identifier to FILE, or for `-` to standard output; the others read it from there, or
//! from standard input. They meet, make a call, and end with status 0; or print why not.
//!
//! `join env FILE` meets in the same way, with the rest from the environment.
//!
//! `join drop` is all ranks of some jobs, drops joins that are awaited, and finds whether that leaves
//! anything behind.
#![forbid(unsafe_code)]

mod dropped;

use std::fs;
use std::io::{Read, Write, stdin, stdout};
use std::process::ExitCode;
use std::thread::sleep;
use std::time::Duration;

use brevity::transport::bootstrap::Choice;
use brevity::{JobId, Join, ReduceOp, launch};

fn main() -> ExitCode {
    launch::die_with_parent();
    let words: Vec<String> = std::env::args().skip(1).collect();
    if words == ["drop"] {
        return dropped::run();
    }
    match run(&words) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

type Outcome<T> = Result<T, Box<dyn std::error::Error>>;

fn run(words: &[String]) -> Outcome<()> {
    match words {
        [source, file] if source == "env" => {
            let rank = std::env::var("BREVITY_RANK")?.parse()?;
            meet(Join::from_env()?, rank, file, Choice::Tcp)
        }
        [rank, world_size, file, transport] => {
            let transport = Choice::parse(transport).ok_or("no such transport")?;
            let rank = rank.parse()?;
            meet(Join::new(rank, world_size.parse()?).transport(transport), rank, file, transport)
        }
        _ => Err("expected RANK WORLD_SIZE FILE TRANSPORT".into()),
    }
}

fn meet(join: Join, rank: u32, file: &str, transport: Choice) -> Outcome<()> {
    let id = if rank == 0 {
        let id = join.make_id()?;
        store(file, &id.to_bytes())?;
        id
    } else {
        JobId::from_bytes(&load(file)?)?
    };
    let group = join.id(id).join()?;
    let mut sum = [rank];
    group.all_reduce(&mut sum, ReduceOp::Sum)?;
    assert_eq!(sum, [group.world_size() * (group.world_size() - 1) / 2]);
    assert_eq!(group.transport(), transport.name());
    // No rank leaves while another still needs it.
    Ok(group.barrier()?)
}

fn store(file: &str, bytes: &[u8]) -> Outcome<()> {
    if file == "-" {
        stdout().write_all(bytes)?;
        return Ok(stdout().flush()?);
    }
    // At once, so that nobody reads half of it.
    let written = format!("{file}.new");
    fs::write(&written, bytes)?;
    Ok(fs::rename(written, file)?)
}

/// Waits for the file.
fn load(file: &str) -> Outcome<Vec<u8>> {
    let mut bytes = Vec::new();
    if file == "-" {
        stdin().read_to_end(&mut bytes)?;
        return Ok(bytes);
    }
    loop {
        match fs::read(file) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                sleep(Duration::from_millis(5));
            }
            read => return Ok(read?),
        }
    }
}
