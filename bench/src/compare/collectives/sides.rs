//! Both sides of a row: ranks of Brevity, the peers that have the collective, and the floor of the links.

use std::process::Command;

use brevity::collectives::dense::AllReduce;
use brevity::collectives::{Ground, Work, estimates};
use brevity::transport::bootstrap::Choice;

use super::rows::{Against, Form, LINKS, On, Row};
use crate::Result;
use crate::collective::Collective;
use crate::compare::pairs::{Alike, Contestant, Effort, OfJob};
use crate::compare::rows::{NOT_SHARED, SHARED};
use crate::job::{Job, own_program};
use crate::net::{GOODPUT, Hosts};
use crate::order::Order;
use crate::peers::{Gloo, Mpi, Wire};
use crate::size::SizeRange;

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
    /// Starts both sides, on `hosts` if the row has them. Adds to `left_out` the peers that can't be
    /// measured, and why.
    ///
    /// # Errors
    /// If ranks of Brevity do not start.
    pub fn start(
        row: Row,
        world_size: u32,
        hosts: Option<Hosts>,
        stage: &Stage,
        left_out: &mut Vec<String>,
    ) -> Result<Self> {
        let jobs = match (stage.quick, row.on, world_size) {
            (true, ..) => 1,
            (false, On::Sockets | On::Memory, 2) => Alike::JOBS,
            _ => FEW_JOBS,
        };
        let own = |form: Form| -> Result<OfJob> {
            let job = match &hosts {
                None => ours(row.on, world_size, form),
                Some(hosts) => ours_on(hosts, form),
            };
            job.map(OfJob::slowest)
        };
        let (form, other) = row.against.forms();
        let ours = Alike::start_as_many(jobs, || own(form))?;
        let mut theirs: Vec<Box<dyn Contestant>> = Vec::new();
        if let Some(other) = other {
            theirs.push(Box::new(Alike::start_as_many(jobs, || own(other))?));
        }
        for (name, start) in peers(row, world_size, hosts.as_ref(), stage, left_out) {
            match Alike::start_as_many(jobs, || Ok(OfJob::slowest(start()?))) {
                Ok(jobs) => theirs.push(Box::new(jobs)),
                Err(error) => left_out.push(format!("{name}: {error}")),
            }
        }
        let collective = row.collective;
        let floor = hosts.as_ref().filter(|_| other.is_none());
        let floor = floor.map(|hosts| Floor { collective, world_size, hosts: hosts.count() });
        theirs.extend(floor.map(|floor| match row.against {
            Against::Plan => Box::new(Planned::new(world_size)) as Box<dyn Contestant>,
            _ => Box::new(floor),
        }));
        Ok(Self { ours, theirs, floor, _hosts: hosts })
    }

    /// The least time that the links allow, in microseconds; `None` on other wires.
    pub fn floor_us(&self, bytes: usize) -> Option<f64> {
        self.floor.map(|floor| floor.microseconds(bytes))
    }
}

fn ours(on: On, ranks: u32, form: Form) -> Result<Job> {
    let (name, shared) = if on == On::Memory { ("host", SHARED) } else { ("tcp", NOT_SHARED) };
    let name = form.name.unwrap_or(name);
    Job::ours_as(RANK, name, ranks, Choice::Tcp, &[form.dtype.name()], &[shared, TIMEOUT, form.any_order()])
}

fn ours_on(hosts: &Hosts, form: Form) -> Result<Job> {
    Job::theirs(form.name.unwrap_or("tcp"), hosts.ranks(), |socket| {
        let mut command: Command = hosts.run(&own_program()?);
        let wire = ("BREVITY_TRANSPORT", Choice::Tcp.name());
        command.arg(RANK).arg(socket).arg(form.dtype.name()).envs([wire, TIMEOUT, form.any_order()]);
        command.envs(form.machine.map(|machine| ("BREVITY_MACHINE", machine)));
        Ok(vec![command])
    })
}

/// A way to start ranks of a peer, and the name of the peer.
type Start<'a> = (String, Box<dyn Fn() -> Result<Job> + 'a>);

/// The peers that have the row. Those that spin are left out where ranks outnumber processors.
fn peers<'a>(
    row: Row,
    ranks: u32,
    hosts: Option<&'a Hosts>,
    stage: &'a Stage,
    left_out: &mut Vec<String>,
) -> Vec<Start<'a>> {
    let mut starts: Vec<Start<'a>> = Vec::new();
    if row.against != Against::Others {
        return starts;
    }
    let gloo = stage.gloo.as_ref().filter(|_| row.on != On::Memory && Gloo::has(row.collective));
    if let Some(gloo) = gloo {
        let start = move || hosts.map_or_else(|| gloo.start(ranks), |hosts| gloo.start_on(hosts));
        starts.push((Gloo::NAME.to_owned(), Box::new(start)));
    }
    let wire = match row.on {
        On::Sockets => Wire::Tcp,
        On::Memory => Wire::Shm,
        // The launchers of MPI do not start ranks in network namespaces.
        On::Links | On::Pairs => return starts,
    };
    for (mpi, setting) in
        stage.mpis.iter().flat_map(|mpi| mpi.settings(wire).into_iter().map(move |to| (mpi, to)))
    {
        let (name, processors) = (setting.name.clone(), stage.processors);
        if ranks > processors {
            left_out.push(format!("{name}: it spins, and {ranks} ranks have {processors} processors"));
        } else {
            starts.push((name, Box::new(move || mpi.start_collectives(&setting, ranks))));
        }
    }
    starts
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

/// What the plan says of an all-reduce on [`LINKS`].
struct Planned {
    ground: Ground,
}

impl Planned {
    fn new(world_size: u32) -> Self {
        let machine = LINKS.parse().unwrap_or_else(|error| unreachable!("{LINKS}: {error}"));
        Self { ground: Ground::new(machine, world_size) }
    }
}

impl Contestant for Planned {
    fn name(&self) -> &'static str {
        "the plan"
    }

    fn measure(&mut self, order: &Order) -> Result<f64> {
        let work = Work { bytes: order.bytes, wide_bytes: order.bytes, ..Work::default() };
        let (_, estimate) = estimates::<AllReduce>(&work, &self.ground)[0];
        Ok(estimate.seconds * 1e6)
    }
}
