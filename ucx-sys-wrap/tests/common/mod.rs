//! The cases that every transport must pass, for the tests of each transport.
#![allow(clippy::unwrap_used)] // Nothing here but tests.

mod contexts;
mod endings;
mod epochs;
mod found;
mod messages;
mod remote;
mod woken;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::thread;
use std::time::{Duration, Instant};

use ucx_sys_wrap::buffer::{Comm, Port, scope};
use ucx_sys_wrap::{Envelope, Mark, Rank, Signature, Tag, Transport};

/// The limit for all ranks of one case; generous, since it only has to distinguish slow from stuck.
/// `BREVITY_TEST_PATIENCE` multiplies it for slow builds, for instance under a sanitizer.
const DEADLINE: Duration = Duration::from_secs(60);

/// The sequence number of the messages that end a case; cases use others.
const LAST_SEQUENCE: u32 = 0xf_ffff;

/// Ranks, in their order.
pub type World = Vec<Box<dyn Transport>>;

/// A name, the world sizes it runs with, and what every rank does.
type Case = (&'static str, &'static [u32], fn(&Arc<Port>));

/// After these cases the ranks meet once more in context 0, which must still be open.
const CASES: &[Case] = &[
    ("order within a tag", &[2], messages::order_within_a_tag),
    ("tags received out of order", &[2], messages::tags_out_of_order),
    ("unexpected messages", &[2], messages::unexpected),
    ("parts", &[2], messages::parts),
    ("refused messages", &[2], messages::refused),
    ("mark", &[2], messages::mark),
    ("sizes", &[2], messages::sizes),
    ("40 MiB", &[2], messages::forty_mebibytes),
    ("all to all", &[1, 2, 3, 5, 8], messages::all_to_all),
    ("peers that are none", &[2], messages::no_such_peer),
    ("statistics", &[2], messages::statistics),
    ("tags of other ranks", &[2], messages::foreign_tags),
    ("messages that are found in turn", &[3], found::in_turn),
    ("messages that are found by source and tag", &[2], found::picked),
    ("found messages of all lengths", &[2], found::lengths),
    ("asleep until a message is found", &[2], found::sleep),
    ("found messages and epochs", &[2], found::epochs),
    ("withdrawn receives", &[2], found::withdrawn),
    ("canceled receive", &[2], endings::canceled_recv),
    ("canceled send", &[2], endings::canceled_send),
    ("receive canceled in the middle", &[2], endings::canceled_in_the_middle),
    ("operations left in a scope", &[2], endings::left_in_a_scope),
    ("expired scope", &[2], endings::expired),
    ("tasks", &[3], endings::tasks),
    ("sleep", &[2], endings::sleep),
    ("put and get", &[2], remote::put_and_get),
    ("put and get of several parts", &[2], remote::parts),
    ("allocated regions", &[2], remote::allocated),
    ("many puts and gets", &[2], remote::many),
    ("puts and gets outside of the region", &[2], remote::bounds),
    ("forged keys", &[2], remote::forged_keys),
    ("unregistered regions", &[2], remote::unregistered),
    ("region unregistered in flight", &[2], remote::unregistered_in_flight),
    ("puts and gets left in a scope", &[2], remote::left_in_a_scope),
    ("puts and gets asleep", &[2], remote::sleep),
    ("futures that are polled when they wake", &[2], woken::every_operation),
    ("receives that are polled only when they end", &[2], woken::few_polls),
    ("futures that are woken by ends of all kinds", &[2], woken::every_end),
    ("one of two contexts aborted", &[3], contexts::one_aborted),
    ("one of two contexts timed out", &[3], contexts::one_timed_out),
    ("one of two contexts aborted on request", &[2], contexts::requested_abort),
    ("notice before its context", &[2], contexts::notice_before_opening),
    ("context number used again", &[2], contexts::number_used_again),
    ("late messages of an old epoch, expected", &[2], epochs::late_and_expected),
    ("late messages of an old epoch, unexpected", &[2], epochs::late_and_unexpected),
    ("messages of an old epoch before its end", &[2], epochs::early),
];

/// These close context 0.
const CLOSING_CASES: &[Case] = &[
    ("peer dropped", &[3], endings::peer_dropped),
    ("found messages of one given up", &[2], found::of_one_given_up),
    ("peer dropped under a send", &[2], endings::peer_dropped_under_a_send),
    ("peer dropped under puts and gets", &[2], remote::peer_dropped),
    ("abort under puts and gets", &[2], remote::aborted),
    ("abort", &[2, 5], endings::abort),
    ("time over", &[3], endings::time_over),
    ("scope left after an abort", &[2], endings::scope_after_abort),
    ("one of two contexts with a lost member", &[3], contexts::one_with_a_lost_member),
    ("loss in another context", &[3], contexts::loss_spares_others),
    ("loss heard of by progress alone", &[3], contexts::notice_without_an_operation),
    ("context opened after a loss", &[3], contexts::opened_after_loss),
];

/// Runs all cases on worlds from `make`, which is given the number of ranks. Each rank gets a thread.
///
/// # Panics
/// With the case's name, if it fails or does not end in time.
pub fn battery(name: &str, make: impl Fn(u32) -> World) {
    let cases = CASES.iter().map(|case| (case, true)).chain(CLOSING_CASES.iter().map(|case| (case, false)));
    for (&(case, world_sizes, body), meets) in cases {
        for &world_size in world_sizes {
            let start = Instant::now();
            let title = format!("{name}: {case}, {world_size} ranks");
            run(&title, make(world_size), move |port| {
                body(&port);
                if meets {
                    meet(&port);
                }
            });
            println!("{title}: {:?}", start.elapsed());
        }
    }
}

/// Runs `body` for every rank in its own thread.
///
/// # Panics
/// If one of them panics, or does not end in time.
pub fn run(title: &str, world: World, body: impl Fn(Arc<Port>) + Send + Sync + 'static) {
    run_for(title, DEADLINE, world, body);
}

/// Like [`run`], with another deadline.
///
/// # Panics
/// The same as for [`run`].
pub fn run_for(
    title: &str,
    patience: Duration,
    world: World,
    body: impl Fn(Arc<Port>) + Send + Sync + 'static,
) {
    let (body, (report, reports)) = (Arc::new(body), channel());
    let mut running: Vec<_> = (0..world.len()).collect();
    let mut threads = Vec::new();
    for (rank, transport) in world.into_iter().enumerate() {
        assert_eq!(transport.rank().index(), rank, "{title}: transports come by rising rank");
        let (body, report) = (Arc::clone(&body), report.clone());
        threads.push(thread::spawn(move || {
            let result = catch_unwind(AssertUnwindSafe(|| body(Port::new(transport))));
            let failure = result.err().map(|panic| match panic.downcast::<String>() {
                Ok(text) => *text,
                Err(panic) => panic.downcast_ref::<&str>().unwrap_or(&"a panic").to_string(),
            });
            report.send((rank, failure)).unwrap();
        }));
    }
    drop(report);
    let times = std::env::var("BREVITY_TEST_PATIENCE").map_or(1, |text| text.parse().unwrap());
    let deadline = Instant::now() + patience * times;
    while !running.is_empty() {
        match reports.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
            Ok((rank, None)) => running.retain(|other| *other != rank),
            Ok((rank, Some(failure))) => panic!("{title}: rank {rank}: {failure}"),
            Err(RecvTimeoutError::Timeout) => panic!("{title}: ranks {running:?} hang"),
            Err(RecvTimeoutError::Disconnected) => unreachable!("every rank reports"),
        }
    }
    // All have reported; joining makes sure that everything the threads owned is dropped.
    threads.into_iter().for_each(|thread| thread.join().unwrap());
}

/// Runs `body` to its end, and progresses the transport in between.
pub fn block<'env, R>(port: &Arc<Port>, body: impl AsyncFnOnce(&Comm<'env>) -> R) -> R {
    scope(port, |comm| turn(comm.port()), body)
}

pub fn turn(port: &Port) {
    if !port.progress() {
        thread::yield_now();
    }
}

/// Every rank receives from every other.
pub fn meet(port: &Arc<Port>) {
    let own = port.rank();
    block(port, async |comm| {
        let sends: Vec<_> =
            peers(port).map(|peer| comm.send(peer, envelope(own, LAST_SEQUENCE, 0), ())).collect();
        for peer in peers(port) {
            comm.recv(peer, envelope(peer, LAST_SEQUENCE, 0), ()).await.unwrap();
        }
        for send in sends {
            send.await.unwrap();
        }
    });
}

/// All ranks but this one.
pub fn peers(port: &Port) -> impl Iterator<Item = Rank> {
    let own = port.rank();
    Rank::all(port.world_size()).filter(move |rank| *rank != own)
}

/// An envelope of context 0, which every new port has.
pub fn envelope(source: Rank, sequence: u32, round: u32) -> Envelope {
    Envelope { tag: Tag::new(source, 0, sequence, round), signature: Signature::default(), mark: Mark::NONE }
}

/// An envelope of a context and its epoch.
pub fn within(context: u16, epoch: u8, source: Rank, round: u32) -> Envelope {
    let mut signature = Signature::default();
    signature.0[Signature::EPOCH_AT] = epoch;
    Envelope { tag: Tag::new(source, context, 1, round), signature, mark: Mark::NONE }
}

/// Bytes that differ from place to place and from seed to seed.
pub fn pattern(seed: usize, length: usize) -> Vec<u8> {
    let start = (seed as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (0..length as u64)
        .map(|index| (start.wrapping_add(index.wrapping_mul(0x5851_f42d_4c95_7f2d)) >> 56) as u8)
        .collect()
}
