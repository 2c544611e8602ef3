//! A rank leaves puts and gets while the memory's owner is stopped.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Instant;

use brevity::transport::Result;
use brevity::transport::buffer::{Port, Region, RemoteRegion};

use crate::landing::Place;
use crate::{
    AFTERMATH, OWNER, PATIENCE, Plan, REUSED, SENT, UNTOUCHED, VISITOR, envelope, hear_process, part, run,
    run_until, stop_other, tell_process, turn_for,
};

/// The owner: its memory has twice the bytes; the first half is for gets, the second for puts.
pub fn own(port: &Arc<Port>, plan: &Plan) {
    let memory = [vec![SENT; plan.bytes], vec![UNTOUCHED; plan.bytes]].concat();
    let region = Region::register(port, memory).unwrap_or_else(|error| panic!("{error}"));
    let key = region.key().to_bytes();
    tell_process(port, VISITOR);
    run(port, async |comm| comm.send(VISITOR, envelope(OWNER, 2), key).await.map(drop))
        .unwrap_or_else(|error| panic!("{error}"));
    // It ends when the other rank has left.
    let left: Result<()> = run_until(port, Instant::now() + PATIENCE, async |comm| {
        comm.recv(VISITOR, envelope(VISITOR, 3), vec![0u8; 8]).await.map(drop)
    });
    assert!(left.is_err(), "nobody sends this");
    let mut found = vec![0; 2 * plan.bytes];
    region.read(0, &mut found).unwrap_or_else(|error| panic!("{error}"));
    let (got, put) = found.split_at(plan.bytes);
    assert!(got.iter().all(|byte| *byte == SENT), "memory was written that nobody has put to");
    assert!(
        put.iter().all(|byte| [UNTOUCHED, SENT].contains(byte)),
        "what was put is not what was handed in"
    );
}

/// The rank that leaves.
pub fn visit(port: &Arc<Port>, plan: &Plan) {
    let owner = hear_process(port, OWNER);
    let mut key = vec![0u8; 4096];
    let heard = run(port, async |comm| {
        comm.recv(OWNER, envelope(OWNER, 2), &mut key[..]).await.map(|(_, heard)| heard)
    });
    let length = heard.unwrap_or_else(|error| panic!("{error}")).lengths[0];
    let remote = RemoteRegion::open(port, OWNER, &key[..length]).unwrap_or_else(|error| panic!("{error}"));
    let (mut source, mut place) = (vec![SENT; plan.bytes], vec![UNTOUCHED; plan.bytes]);
    let landing = Place::of(&place);
    let start = Instant::now();
    let left = catch_unwind(AssertUnwindSafe(|| {
        run(port, async |comm| {
            let get = comm.get(&remote, 0, &mut place[..]);
            let put = comm.put(&remote, plan.bytes, &source[..]);
            landing.await_halfway(port);
            stop_other(owner);
            assert!(landing.is_halfway(), "it went on without this rank");
            part((get, put), &plan.way);
        });
    }));
    assert_eq!(left.is_err(), plan.way == "panic");
    assert!(start.elapsed() < PATIENCE, "leaving took {:?}", start.elapsed());
    source.fill(REUSED);
    place.fill(REUSED);
    owner.signal("CONT");
    turn_for(port, AFTERMATH);
    assert!(place.iter().all(|byte| *byte == REUSED), "memory was written after it was given back");
    assert!(source.iter().all(|byte| *byte == REUSED), "memory that was put from was written");
}
