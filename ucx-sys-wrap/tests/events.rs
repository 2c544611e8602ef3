//! Subscribers that call back the port whose transport reported an event.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

#[allow(dead_code, reason = "the battery belongs to others")]
mod common;

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Weak};

use brevity_testing::{Wire, on_every_wire};
use common::{block, envelope, turn};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Metadata, Subscriber};
use ucx_sys_wrap::buffer::{Port, Region};
use ucx_sys_wrap::sim::{Cluster, Links, run};
use ucx_sys_wrap::{Failure, Rank};

/// Calls everything on every port it has, at every event.
struct CallsBack {
    ports: Vec<Weak<Port>>,
    heard: Arc<AtomicU32>,
}

impl Subscriber for CallsBack {
    fn enabled(&self, _: &Metadata<'_>) -> bool {
        true
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, event: &Event<'_>) {
        if !event.metadata().target().starts_with("ucx_sys_wrap") {
            return;
        }
        self.heard.fetch_add(1, Ordering::Relaxed);
        for port in self.ports.iter().filter_map(Weak::upgrade) {
            call_everything(&port);
        }
    }

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

/// Every function of a port that may be called; they fail only if the transport has failed.
fn call_everything(port: &Arc<Port>) {
    let peer = Rank((port.rank().0 + 1) % port.world_size());
    let _ = (port.statistics(), port.now(), port.failure(), port.watch(peer), port.arm());
    port.progress();
    if port.failure().is_some() {
        let sent = block(port, async |comm| comm.send(peer, envelope(port.rank(), 9, 0), vec![1u8]).await);
        assert!(sent.is_err());
        assert!(Region::register(port, vec![0u8; 8]).is_err());
    }
    port.abort();
}

on_every_wire! {
    a_subscriber_may_call_back => |wire: Wire| {
        let heard = Arc::new(AtomicU32::new(0));
        let told = Arc::clone(&heard);
        common::run("events", wire.world(2), move |port| {
            let (ports, heard) = (vec![Arc::downgrade(&port)], Arc::clone(&told));
            tracing::subscriber::with_default(CallsBack { ports, heard }, || {
                if port.rank() == Rank(1) {
                    port.abort();
                }
                while port.failure().is_none() {
                    turn(&port);
                }
                assert_eq!(port.failure(), Some(Failure::Aborted(Rank(1))));
                turn(&port);
            });
        });
        assert!(heard.load(Ordering::Relaxed) > 0, "{wire:?} has told nothing");
    };
}

/// All ranks are on one thread there, behind one lock.
#[test]
fn a_subscriber_may_ask_other_ranks_of_a_simulation() {
    let heard = Arc::new(AtomicU32::new(0));
    let mut ports = Vec::new();
    let failures = run(Cluster::new(3, Links::new(1e-4, 1e-9)), |transport| {
        let port = Port::new(transport);
        ports.push(Arc::downgrade(&port));
        let (ports, heard) = (ports.clone(), Arc::clone(&heard));
        let subscriber = tracing::Dispatch::new(CallsBack { ports, heard });
        std::future::poll_fn(move |_| {
            let _told = tracing::dispatcher::set_default(&subscriber);
            if port.rank() == Rank(2) {
                port.abort();
            }
            port.progress();
            port.failure().map_or(std::task::Poll::Pending, std::task::Poll::Ready)
        })
    });
    // Each port that was called back has aborted as well.
    assert!(failures.unwrap().iter().all(|failure| matches!(failure, Failure::Aborted(_))));
    assert!(heard.load(Ordering::Relaxed) > 0);
}
