//! One rank of a job with a parameter server: three workers at a limited rate, and a dedicated server that
//! saves its shard again and again. `serve FOLDER`: states, records and counts are there. `serve FOLDER
//! every`: every rank serves, and saves its state after each step, with what it has handed in behind it.
//! `serve FOLDER again`: as the first, but a server that is lost is taken back, and workers go on with it.
//!
//! A worker writes its steps to `steps-RANK`, the most milliseconds between two of them to `gap-RANK`, and
//! what it has handed in to `record-RANK`, and goes on until there is a file `stop`, or until a server is
//! lost: then it saves its state, and writes how long after the last step that was to `lost-RANK`. In the
//! end the server, or rank 0 if every rank serves, writes the model to `model`. A rank begins from the states
//! that it finds: its own, or all if every rank serves.
#![forbid(unsafe_code)]

use std::fs;
use std::io::Cursor;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::thread::sleep;
use std::time::{Duration, Instant};

use brevity::server::{Method, Servers};
use brevity::{Error, Group, ParameterServer, launch};
use brevity_tests::LOST_STATUS;
use brevity_tests::faults::Log;
use brevity_tests::pushes::{Record, builder, zeros};

const METHOD: Method = Method::gradient_dropping(0.1);

/// The pause of a worker between two steps.
const PAUSE: Duration = Duration::from_millis(5);

/// In which time all ranks hear of a death.
const NOTICE: Duration = Duration::from_secs(1);

/// A rank that is not ended from outside ends by itself after this time.
const PATIENCE: Duration = Duration::from_secs(150);

fn main() -> ExitCode {
    launch::die_with_parent();
    let folder = PathBuf::from(std::env::args().nth(1).unwrap_or_default());
    match run(&folder) {
        Ok(status) => status,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

fn run(folder: &Path) -> brevity::Result<ExitCode> {
    let group = Group::from_env()?;
    let rank = group.rank();
    let way = std::env::args().nth(2);
    if way.as_deref() == Some("every") {
        let mut builder = builder(&group).method(METHOD).keep_pushes();
        let mut record = Record::default();
        for number in 0u32.. {
            let Ok(state) = fs::read(folder.join(format!("state-{number}"))) else { break };
            let mut state = Cursor::new(state);
            builder = builder.resume(&mut state)?;
            if number % group.world_size() == rank {
                // Its residuals are this rank's.
                record.absorb(&Record::read(&state.get_ref()[state.position() as usize..]));
            }
        }
        let server = builder.build(&zeros())?;
        return work(folder, group, server, Some(record), false);
    }
    let server = dedicated(folder, &group)?;
    if server.is_worker() {
        work(folder, group, server, None, way.is_some())
    } else {
        serve(folder, rank, server)
    }
}

/// A dedicated server of three workers, from the state of this rank if there is one.
fn dedicated(folder: &Path, group: &Group) -> brevity::Result<ParameterServer> {
    let mut builder = builder(group).method(METHOD).keep_pushes().servers(Servers::Dedicated(1));
    if let Ok(state) = fs::read(folder.join(format!("state-{}", group.rank()))) {
        builder = builder.resume(&mut Cursor::new(state))?;
    }
    builder.build(&zeros())
}

fn serve(folder: &Path, rank: u32, mut server: ParameterServer) -> brevity::Result<ExitCode> {
    Log::of(rank).ready();
    let begun = Instant::now();
    while !server.serve_for(Duration::from_millis(15))? && begun.elapsed() < PATIENCE {
        save(folder, rank, &mut server, None)?;
    }
    let (_, model) = server.model().unwrap_or_default();
    write(&folder.join("model"), &bytes(&model));
    Ok(ExitCode::SUCCESS)
}

/// Works, from a record if every rank serves. `goes_on`: also after the loss of a server.
fn work(
    folder: &Path,
    mut group: Group,
    mut server: ParameterServer,
    begun_from: Option<Record>,
    goes_on: bool,
) -> brevity::Result<ExitCode> {
    let (rank, serves) = (group.rank(), begun_from.is_some());
    let of_rank = |name: &str| folder.join(format!("{name}-{rank}"));
    let read = || Record::read(&fs::read(of_rank("record")).unwrap_or_default());
    let mut record = begun_from.unwrap_or_else(read);
    let mut step: u32 = text(&of_rank("steps")).parse().unwrap_or_default();
    let mut parameters = zeros();
    server.fetch(&mut parameters)?;
    Log::of(rank).ready();
    let (begun, mut last, mut gap) = (Instant::now(), Instant::now(), 0);
    while !folder.join("stop").exists() && begun.elapsed() < PATIENCE {
        record.push(&mut server, rank, step)?;
        step += 1;
        write(&of_rank("record"), &record.bytes());
        match server.pull(&mut parameters) {
            Ok(_) => {}
            Err(Error::ServerLost { rank: lost, shard }) => {
                let after = last.elapsed().as_millis();
                write(&of_rank("steps"), step.to_string().as_bytes());
                save(folder, rank, &mut server, Some(&record).filter(|_| serves))?;
                write(&of_rank("lost"), format!("{lost} {shard} {after}").as_bytes());
                if goes_on {
                    drop(server);
                    group = group.shrink()?.grow(PATIENCE)?;
                    server = dedicated(folder, &group)?;
                    server.fetch(&mut parameters)?;
                    last = Instant::now();
                    continue;
                }
                if serves {
                    // The others hear of the death, and not of this rank's end.
                    sleep(NOTICE);
                }
                return Ok(ExitCode::from(LOST_STATUS));
            }
            Err(error) => return Err(error),
        }
        if serves {
            save(folder, rank, &mut server, Some(&record))?;
        }
        let pause = last.elapsed().as_millis();
        if pause > gap {
            gap = pause;
            write(&of_rank("gap"), gap.to_string().as_bytes());
        }
        last = Instant::now();
        write(&of_rank("steps"), step.to_string().as_bytes());
        sleep(PAUSE);
    }
    end(folder, &group, server, parameters)
}

/// Leaves the server; if this one is part of it, with the model of all ranks.
fn end(
    folder: &Path,
    group: &Group,
    mut server: ParameterServer,
    mut parameters: Vec<Vec<f32>>,
) -> brevity::Result<ExitCode> {
    if server.shard().is_some() {
        // All pushes are applied then.
        group.barrier()?;
        server.fetch(&mut parameters)?;
        if group.rank() == 0 {
            write(&folder.join("model"), &bytes(&parameters.concat()));
        }
    }
    server.leave()?;
    Ok(ExitCode::SUCCESS)
}

/// Saves a state, with a record behind it.
fn save(
    folder: &Path,
    rank: u32,
    server: &mut ParameterServer,
    record: Option<&Record>,
) -> brevity::Result<()> {
    let mut state = Vec::new();
    server.save(&mut state)?;
    state.extend(record.map(Record::bytes).unwrap_or_default());
    write(&folder.join(format!("state-{rank}")), &state);
    server.confirm_saved();
    Ok(())
}

fn bytes(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|value| value.to_le_bytes()).collect()
}

fn text(path: &Path) -> String {
    fs::read_to_string(path).unwrap_or_default()
}

/// Whoever reads the file sees all of it.
fn write(path: &Path, bytes: &[u8]) {
    let new = path.with_extension("new");
    let written = fs::write(&new, bytes).and_then(|()| fs::rename(&new, path));
    written.unwrap_or_else(|error| panic!("{}: {error}", path.display()));
}
