//! Both sides of a row: ranks of Brevity, the peers that have the collective, and the floor of the links.

use std::process::Command;

use brevity::transport::bootstrap::Choice;

use super::rows::{On, Row};
use crate::collective::Collective;
use crate::compare::pairs::{Alike, Contestant, Effort, OfJob};
use crate::compare::rows::{NOT_SHARED, SHARED};
use crate::job::{Job, own_program};
use crate::net::{GOODPUT, Hosts};
use crate::order::Order;
use crate::peers::{Gloo, Mpi, Wire};
use crate::size::SizeRange;
use crate::{Error, Result};

/// The hidden command of a rank.
const RANK: &str = "collectives-rank";

/// Time for the longest vectors to be made.
const TIMEOUT: (&str, &str) = ("BREVITY_TIMEOUT", "120");

/// Equal jobs of a side, if there are many ranks, or a shaped link makes all connections alike.
const FEW_JOBS: usize = 2;

/// The peers that were found, and how much is measured.
pub struct Stage {
    /// Torch's Gloo.
    pub gloo: Option<Gloo>,
    /// Implementations of MPI.
    pub mpis: Vec<Mpi>,
    /// Processors for the ranks.
    pub processors: u32,
    /// How much is measured.
    pub effort: Effort,
    /// Whether this only says that everything works.
    pub quick: bool,
    /// The sizes, if given.
    pub sizes: Option<SizeRange>,
    /// The numbers of ranks; empty for those of the row.
    pub ranks: Vec<u32>,
}

/// Both sides. Hosts go when their ranks have gone.
pub struct Sides {
    /// Brevity.
    pub ours: Alike,
    /// The others.
    pub theirs: Vec<Box<dyn Contestant>>,
    floor: Option<Floor>,
    _hosts: Option<Hosts>,
}

impl Sides {
    /// Starts both sides. A peer that does not start is reported on standard error and left out.
    ///
    /// # Errors
    /// If ranks of Brevity do not start, or hosts can't be made.
    pub fn start(row: Row, world_size: u32, stage: &Stage) -> Result<Self> {
        let Row { collective, on } = row;
        let per_host = if on == On::Pairs { 2 } else { 1 };
        if !world_size.is_multiple_of(per_host) {
            return Err(Error::Arguments(format!(
                "--ranks {world_size}: {} has {per_host} on a host",
                row.name()
            )));
        }
        let hosts = matches!(on, On::Links | On::Pairs).then(|| Hosts::new(world_size / per_host, per_host));
        let hosts = hosts.transpose()?;
        let jobs = match (stage.quick, on, world_size) {
            (true, ..) => 1,
            (false, On::Sockets | On::Memory, 2) => Alike::JOBS,
            _ => FEW_JOBS,
        };
        let ours = Alike::start_as_many(jobs, || {
            let job = hosts.as_ref().map_or_else(|| ours(on, world_size), ours_on);
            job.map(OfJob::slowest)
        })?;
        let mut theirs = others(row, world_size, stage, (hosts.as_ref(), jobs));
        let floor = hosts.as_ref().map(|_| Floor { collective, world_size, hosts: world_size / per_host });
        theirs.extend(floor.map(|floor| Box::new(floor) as Box<dyn Contestant>));
        Ok(Self { ours, theirs, floor, _hosts: hosts })
    }

    /// The least time that the links allow, in microseconds; `None` on other wires.
    pub fn floor_us(&self, bytes: usize) -> Option<f64> {
        self.floor.map(|floor| floor.microseconds(bytes))
    }
}

fn ours(on: On, ranks: u32) -> Result<Job> {
    let (name, shared) = if on == On::Memory { ("host", SHARED) } else { ("tcp", NOT_SHARED) };
    Job::ours_as(RANK, name, ranks, Choice::Tcp, &[], &[shared, TIMEOUT])
}

fn ours_on(hosts: &Hosts) -> Result<Job> {
    Job::theirs("tcp", hosts.ranks(), |socket| {
        let mut command: Command = hosts.run(&own_program()?);
        command.arg(RANK).arg(socket).env("BREVITY_TRANSPORT", Choice::Tcp.name()).env(TIMEOUT.0, TIMEOUT.1);
        Ok(vec![command])
    })
}

/// A way to start ranks of a peer, and the name of the peer.
type Start<'a> = (String, Box<dyn Fn() -> Result<Job> + 'a>);

fn others(
    row: Row,
    ranks: u32,
    stage: &Stage,
    (hosts, jobs): (Option<&Hosts>, usize),
) -> Vec<Box<dyn Contestant>> {
    let mut starts: Vec<Start<'_>> = Vec::new();
    let gloo = stage.gloo.as_ref().filter(|_| row.on != On::Memory && Gloo::has(row.collective));
    if let Some(gloo) = gloo {
        let start = move || hosts.map_or_else(|| gloo.start(ranks), |hosts| gloo.start_on(hosts));
        starts.push((Gloo::NAME.to_owned(), Box::new(start)));
    }
    let wire = match row.on {
        On::Sockets => Some(Wire::Tcp),
        On::Memory => Some(Wire::Shm),
        // Their launchers do not start ranks in network namespaces.
        On::Links | On::Pairs => None,
    };
    for (mpi, wire) in stage.mpis.iter().filter_map(|mpi| Some((mpi, wire?))) {
        for setting in mpi.settings(wire) {
            let name = setting.name.clone();
            if ranks > stage.processors {
                let processors = stage.processors;
                eprintln!("left out: {name} with {ranks} ranks on {processors} processors: its ranks spin");
                continue;
            }
            starts.push((name, Box::new(move || mpi.start_collectives(&setting, ranks))));
        }
    }
    let mut started: Vec<Box<dyn Contestant>> = Vec::new();
    for (name, start) in starts {
        match Alike::start_as_many(jobs, || Ok(OfJob::slowest(start()?))) {
            Ok(jobs) => started.push(Box::new(jobs)),
            Err(error) => eprintln!("left out: {name}: {error}"),
        }
    }
    started
}

/// The time in which the bytes of the busiest port cross its link.
#[derive(Clone, Copy)]
struct Floor {
    collective: Collective,
    world_size: u32,
    hosts: u32,
}

impl Floor {
    fn microseconds(self, bytes: usize) -> f64 {
        self.collective.busiest_port(bytes, self.world_size, self.hosts) / GOODPUT * 1e6
    }
}

impl Contestant for Floor {
    fn name(&self) -> &'static str {
        "goodput floor"
    }

    fn measure(&mut self, order: &Order) -> Result<f64> {
        Ok(self.microseconds(order.bytes))
    }
}
