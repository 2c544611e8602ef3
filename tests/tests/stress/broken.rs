//! Duplicates of the group that are closed in the middle of their calls; the group goes on.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

use brevity::collectives::{Chunk, Error, Result, dense};
use brevity::transport::Rank;
use brevity::{Group, ReduceOp};

use super::member::{Member, check};
use super::regions::words;
use super::{RANKS, block_on, poll_some};

struct OnPurpose;

fn is_aborted_by(error: &Error, rank: u32) -> bool {
    matches!(error, Error::Aborted { rank: found } if *found == Rank(rank))
}

/// A call has ended before the group was closed, or with it.
fn check_closed(result: &Result<()>, rank: u32) {
    let is_right = result.as_ref().err().is_none_or(|error| is_aborted_by(error, rank));
    assert!(is_right, "{result:?}, closed by rank {rank}");
}

/// The body of one rank panics; the calls of the others name it.
pub fn by_a_panic(member: &mut Member) {
    let (lengths, twin) = (member.lengths(), member.twin());
    let panics = member.common.below(RANKS as usize) as u32;
    let is_here = panics == member.rank();
    let earlier: Vec<_> = lengths.iter().map(|length| member.start(&twin, *length)).collect();
    let description = dense::AllReduce::new::<f32>(ReduceOp::Sum).unwrap().describe(10);
    let call = twin.start(description, member.buffer(vec![0u8; 10]), move |call, _| {
        Box::pin(async move {
            if is_here {
                resume_unwind(Box::new(OnPurpose));
            }
            dense::all_reduce(call, Chunk::from(vec![1.0f32; 10]), ReduceOp::Sum).await.map(drop)
        })
    });
    let dropped = member.own.below(3) == 0;
    if dropped {
        drop(call);
    } else {
        let waits = member.own.below(2) == 0;
        let ended = catch_unwind(AssertUnwindSafe(|| if waits { call.wait() } else { block_on(call) }));
        match ended {
            Ok((_, result)) => assert!(!is_here && is_aborted_by(&result.unwrap_err(), panics)),
            Err(panic) => assert!(is_here && panic.is::<OnPurpose>()),
        }
    }
    for (call, length) in earlier.into_iter().zip(lengths) {
        let reduced = call.wait();
        match &reduced.1 {
            Ok(()) => check(&reduced, length),
            result => check_closed(result, panics),
        }
    }
    assert!(is_aborted_by(&twin.barrier().unwrap_err(), panics));
}

/// One rank aborts while the others wait.
pub fn by_an_abort(member: &mut Member) {
    let twin = member.twin();
    let aborts = member.common.below(RANKS as usize) as u32;
    let length = 1 + member.common.below(30_000);
    if aborts == member.rank() {
        for _ in 0..member.own.below(50) {
            twin.progress();
        }
        twin.abort();
    } else {
        wait_in_vain(member, &twin, aborts, length);
    }
    assert!(is_aborted_by(&twin.barrier().unwrap_err(), aborts));
    drop(twin);
    // What a put that was given up still writes is written after this.
    for rank in 0..RANKS {
        member.group.flush(rank).unwrap();
    }
    member.group.barrier().unwrap();
}

/// Something that does not end without the abort, or accesses memory meanwhile.
fn wait_in_vain(member: &mut Member, twin: &Group, aborts: u32, length: usize) {
    match member.own.below(6) {
        0 => {
            let mut call = member.start(twin, length);
            drop(poll_some(&mut call, member.own.below(20)));
        }
        1 => check_closed(&block_on(member.start(twin, length)).1, aborts),
        2 => check_closed(&twin.recv(&mut [0u8], aborts, None).map(drop), aborts),
        3 => check_closed(&block_on(twin.start_probe(None, 3)).1.map(drop), aborts),
        4 => loop {
            let result = twin.put(&words(0, 0, length), &member.opened[aborts as usize], 0);
            check_closed(&result, aborts);
            if result.is_err() {
                break;
            }
        },
        _ => loop {
            let result = twin.get(&mut vec![0u32; length], &member.opened[aborts as usize], 0);
            check_closed(&result, aborts);
            if result.is_err() {
                break;
            }
        },
    }
}

/// A call on a duplicate, some handles of which are gone, ends well.
pub fn by_nobody(member: &mut Member) {
    let (lengths, twin) = (member.lengths(), member.twin());
    let clone = twin.clone();
    drop(twin);
    for length in lengths {
        check(&block_on(member.start(&clone, length)), length);
    }
    assert!(clone.failure().is_none());
    assert!(clone.barrier().is_ok());
}
