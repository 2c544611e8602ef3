//! What algorithms are estimated to take beside what they take on the simulated network.
//!
//! `BREVITY_TEST_ESTIMATES=all` measures every number of ranks and length that has room in memory; without
//! it, those that are measured in seconds.

use std::time::Duration;

use brevity::collectives::dense::{
    AllGather, AllReduce, AllToAll, Barrier, Broadcast, Collective, Gather, Lengths, Place, Reduce,
    ReduceScatter, Scatter,
};
use brevity::collectives::{
    Algorithm, Buffers, DataType, Estimate, Ground, Machine, Reducer, Sizes, Topology, estimates,
};
use brevity::transport::bootstrap::Opened;
use brevity::transport::sim::{Cluster, Links, run};
use brevity::{Group, ReduceOp, Settings};

const ALPHA: f64 = 20e-6;
const BETA: f64 = 1e-9;

const WORLD_SIZES: [u32; 6] = [4, 8, 16, 64, 256, 1024];
const LENGTHS: [usize; 3] = [8, 64 << 10, 16 << 20];

/// The limits of one measurement: bytes of all ranks, and messages.
struct Limits {
    bytes: usize,
    messages: f64,
}

fn limits() -> Limits {
    match std::env::var("BREVITY_TEST_ESTIMATES") {
        Ok(text) if text == "all" => Limits { bytes: 2 << 30, messages: 2e7 },
        _ => Limits { bytes: 160 << 20, messages: 4e4 },
    }
}

/// The ranks that measure.
#[derive(Clone, Copy)]
struct Ranks<'a> {
    ground: Ground,
    hosts: Option<&'a [u32]>,
}

impl Ranks<'_> {
    /// Seconds from the beginning to the end of the last rank. `lengths` are those of a rank's input, if it
    /// has one apart, and output.
    fn measure<C: Collective>(
        &self,
        collective: &C,
        lengths: impl Fn(u32) -> (Option<usize>, usize),
        algorithm: Algorithm,
    ) -> f64 {
        let Ground { machine, world_size, any_order, slice_bytes: segment_bytes, .. } = self.ground;
        let settings = Settings {
            timeout: Duration::from_secs(1_000_000),
            machine: Some(machine),
            any_order,
            segment_bytes,
            ..Settings::default()
        };
        let links = Links::new(machine.between.alpha, machine.between.beta);
        let seconds = run(Cluster::new(world_size, links), |transport| {
            let opened = Opened::in_process(transport, None);
            let opened = match self.hosts {
                Some(hosts) => opened.with_hosts(hosts),
                None => opened,
            };
            let group = Group::opened(opened, settings).with_algorithm(Some(algorithm));
            let (input, output) = lengths(group.rank());
            let collective = collective.clone();
            async move {
                let begun = group.now();
                let memory = (input.map(|bytes| vec![1f32; bytes / 4]), vec![0f32; output / 4]);
                group.start_call(Ok(collective), memory, lend).await.1.unwrap();
                (group.now() - begun).as_secs_f64()
            }
        });
        seconds.unwrap().into_iter().fold(0.0, f64::max)
    }

    /// Compares all algorithms of a collective, unless there is no room for it.
    fn compare<C: Collective>(
        &self,
        collective: &C,
        lengths: impl Fn(u32) -> (usize, usize),
        found: &mut Vec<String>,
    ) {
        self.compare_placed(collective, |rank| (Some(lengths(rank).0), lengths(rank).1), found);
    }

    /// Likewise, apart or in place.
    fn compare_placed<C: Collective>(
        &self,
        collective: &C,
        lengths: impl Fn(u32) -> (Option<usize>, usize),
        found: &mut Vec<String>,
    ) {
        let ranks = self.ground.world_size;
        let limits = limits();
        let room: usize = (0..ranks).map(|rank| lengths(rank).0.unwrap_or(0) + lengths(rank).1).sum();
        if room > limits.bytes {
            return;
        }
        let (input, output) = lengths(0);
        let place = Place { rank: 0, world_size: ranks };
        let work = collective.work(Sizes { input, output }, place);
        for (algorithm, estimate) in estimates::<C>(&work, &self.ground) {
            // Rounds of a tree are few messages, those of others as many as there are ranks.
            let segments = (estimate.bytes / self.ground.slice_bytes as f64).max(1.0);
            let Estimate { rounds, seconds, .. } = estimate;
            let is_direct = matches!(algorithm, Algorithm::Direct | Algorithm::Spread | Algorithm::Hosts);
            let each = if is_direct { f64::from(ranks) } else { 1.0 };
            if f64::from(ranks) * (f64::from(rounds) * each).max(segments) > limits.messages {
                continue;
            }
            let measured = self.measure(collective, &lengths, algorithm);
            let ratio = seconds / measured;
            let text = format!(
                "{}{} by {algorithm}, {ranks} ranks, {} bytes: {:.1} us, estimated {:.1} us, {ratio:.3}",
                C::OPERATION,
                if input.is_none() { " in place" } else { "" },
                work.bytes,
                measured * 1e6,
                seconds * 1e6
            );
            println!("{text}");
            if !(0.95..=1.05).contains(&ratio) {
                found.push(text);
            }
        }
    }

    /// Compares all algorithms for vectors or blocks of so many bytes.
    fn compare_all(&self, bytes: usize, found: &mut Vec<String>) {
        let all = bytes * self.ground.world_size as usize;
        let at_root = |rank: u32, of: usize| if rank == 0 { of } else { 0 };
        let both = |_| (bytes, bytes);
        self.compare(&AllReduce::new::<f32>(ReduceOp::Sum).unwrap(), both, found);
        self.compare(&Broadcast::new::<f32>(0), both, found);
        let reduce = Reduce::new::<f32>(ReduceOp::Sum, 0).unwrap();
        self.compare(&reduce, |rank| (bytes, at_root(rank, bytes)), found);
        let reduce_scatter = ReduceScatter::new::<f32>(ReduceOp::Sum, Lengths::Equal).unwrap();
        self.compare(&reduce_scatter, |_| (all, bytes), found);
        self.compare(&AllGather::new::<f32>(Lengths::Equal), |_| (bytes, all), found);
        self.compare(&Gather::new::<f32>(0, Lengths::Equal), |rank| (bytes, at_root(rank, all)), found);
        self.compare(&Scatter::new::<f32>(0, Lengths::Equal), |rank| (at_root(rank, all), bytes), found);
        self.compare(&Barrier, |_| (0, 0), found);
        let halves = Reducer::of(DataType::Bf16, ReduceOp::Sum).unwrap();
        self.compare(&AllReduce::of(halves.clone()), both, found);
        self.compare(&Reduce::of(halves.clone(), 0), |rank| (bytes, at_root(rank, bytes)), found);
        self.compare(&ReduceScatter::of(halves, Lengths::Equal), |_| (all, bytes), found);
        let all_to_all = AllToAll::new::<f32>(Lengths::Equal, Lengths::Equal);
        self.compare(&all_to_all, |_| (all, all), found);
        self.compare_placed(&all_to_all, |_| (None, all), found);
    }
}

fn lend((input, output): &mut (Option<Vec<f32>>, Vec<f32>)) -> Buffers<'_> {
    match input {
        Some(input) => Buffers::apart(input, output),
        None => Buffers::in_place(output),
    }
}

#[test]
fn estimates_are_what_the_simulated_network_takes() {
    let mut found = Vec::new();
    for world_size in WORLD_SIZES {
        let ground = Ground { any_order: true, ..Ground::new(Machine::uniform(ALPHA, BETA), world_size) };
        for bytes in LENGTHS {
            Ranks { ground, hosts: None }.compare_all(bytes, &mut found);
        }
    }
    assert!(found.is_empty(), "{found:#?}");
}

/// Long vectors of many ranks in little memory: 16 MiB as 64 KiB, with segments and speeds to match.
#[test]
fn estimates_of_many_segments_hold_for_many_ranks() {
    let mut found = Vec::new();
    let scale = 256;
    for world_size in [4, 16, 64, 256, 1024] {
        let machine = Machine::uniform(ALPHA, BETA * scale as f64);
        let slice_bytes = (512 << 10) / scale;
        let ground = Ground { any_order: true, slice_bytes, ..Ground::new(machine, world_size) };
        Ranks { ground, hosts: None }.compare_all((16 << 20) / scale, &mut found);
    }
    assert!(found.is_empty(), "{found:#?}");
}

#[test]
fn estimates_of_levels_hold() {
    let mut found = Vec::new();
    for (hosts, each) in [(2, 2), (2, 4), (4, 4), (8, 8)] {
        let placed: Vec<u32> = (0..hosts * each).map(|rank| rank / each).collect();
        let ground = Ground {
            topology: Topology::of(&placed),
            any_order: true,
            ..Ground::new(Machine::uniform(ALPHA, BETA), hosts * each)
        };
        for bytes in LENGTHS {
            Ranks { ground, hosts: Some(&placed) }.compare_all(bytes, &mut found);
        }
    }
    assert!(found.is_empty(), "{found:#?}");
}
