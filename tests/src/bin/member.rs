//! One rank of a job with three groups that are in use at once, each by a thread: `member VICTIM
//! apart|together`. The victim, a member of two of them, is killed by the test.
//!
//! Reports how the calls on those two ended (`group-0`, `group-1`), and the calls afterwards (`later-0`,
//! `later-1`, `later` on the group of all ranks). The third group must go on: it reports errors as `third`.
#![forbid(unsafe_code)]

use std::process::ExitCode;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::thread;
use std::time::Instant;

use brevity::collectives::Result;
use brevity::{Group, ReduceOp, launch};
use brevity_tests::LOST_STATUS;
use brevity_tests::faults::{Log, PATIENCE};
use brevity_tests::mixed::{ThreeGroups, any_call};

/// After this many turns, a rank is in the middle of its work; the third group also goes on for so many.
const TURNS: u32 = 10;

/// The third group.
const THIRD: usize = 2;

fn main() -> ExitCode {
    launch::die_with_parent();
    let mut words = std::env::args().skip(1);
    let victim = words.next().and_then(|word| word.parse().ok()).unwrap_or_default();
    let are_apart = words.next().as_deref() == Some("apart");
    let world = match Group::from_env() {
        Ok(world) => world,
        Err(error) => {
            eprintln!("{error}");
            return ExitCode::FAILURE;
        }
    };
    let groups = ThreeGroups { world_size: world.world_size(), victim, are_apart };
    let member = Member::new(&world, &groups).unwrap_or_else(|error| panic!("{error}"));
    thread::scope(|threads| {
        for (which, part) in &member.parts {
            let member = &member;
            threads.spawn(
                move || if *which == THIRD { member.go_on(part) } else { member.use_up(*which, part) },
            );
        }
    });
    let start = Instant::now();
    if let Err(error) = world.barrier() {
        member.log.ended("later", &error, start);
    }
    member.log.finish();
    ExitCode::from(LOST_STATUS)
}

/// A rank and its groups.
struct Member {
    log: Log,
    parts: Vec<(usize, Group)>,
    /// The threads that have made some calls.
    warm: AtomicUsize,
    /// The groups with the victim that have not failed here.
    open: AtomicU32,
}

impl Member {
    fn new(world: &Group, groups: &ThreeGroups) -> Result<Self> {
        let mut parts = Vec::new();
        for which in 0..3 {
            let colour = groups.has(which, world.rank()).then_some(0);
            parts.extend(world.split(colour, world.rank())?.map(|part| (which, part)));
        }
        world.barrier()?;
        let open = parts.iter().filter(|(which, _)| *which != THIRD).count() as u32;
        Ok(Self { log: Log::of(world.rank()), parts, warm: AtomicUsize::new(0), open: AtomicU32::new(open) })
    }

    /// The last thread that has made some calls says so for this rank.
    fn warm_up(&self, turn: u32) {
        if turn == TURNS && self.warm.fetch_add(1, Ordering::Relaxed) + 1 == self.parts.len() {
            self.log.ready();
        }
    }

    /// Makes calls until one fails, and then one more.
    fn use_up(&self, which: usize, part: &Group) {
        let end = Instant::now() + PATIENCE;
        for turn in (0..).take_while(|_| Instant::now() < end) {
            self.warm_up(turn);
            let start = Instant::now();
            if let Err(error) = any_call(part, turn) {
                self.log.ended(&format!("group-{which}"), &error, start);
                break;
            }
        }
        let start = Instant::now();
        if let Err(error) = part.barrier() {
            self.log.ended(&format!("later-{which}"), &error, start);
        }
        self.open.fetch_sub(1, Ordering::Relaxed);
    }

    /// Makes calls until the other groups have failed on all members, and some more.
    fn go_on(&self, part: &Group) {
        let (start, mut rest) = (Instant::now(), TURNS);
        let mut call = |turn| {
            self.warm_up(turn);
            any_call(part, turn)?;
            let mut open = [self.open.load(Ordering::Relaxed)];
            part.all_reduce(&mut open, ReduceOp::Max)?;
            rest -= u32::from(open == [0]);
            Ok(rest > 0)
        };
        let mut turns = 0..;
        let last = loop {
            match turns.next().map(&mut call) {
                Some(Ok(true)) if start.elapsed() < 2 * PATIENCE => {}
                last => break last,
            }
        };
        if let Some(Err(error)) = last {
            self.log.ended("third", &error, start);
        }
    }
}
