//! Subscribers that call back the port whose transport reported an event.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

#[allow(dead_code, reason = "the battery belongs to others")]
mod common;

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Weak};

use brevity_testing::{Wire, on_every_wire};
use common::{block, envelope, turn, within};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Metadata, Subscriber};
use ucx_sys_wrap::buffer::{OnLoss, Port, Region};
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

/// Every function of a port that may be called; they fail only in a closed context.
fn call_everything(port: &Arc<Port>) {
    let peer = Rank((port.rank().0 + 1) % port.world_size());
    let _ = (port.statistics(), port.now(), port.failure(0), port.watch(peer), port.arm(), port.lost());
    port.progress();
    if port.failure(0).is_some() {
        let sent = block(port, async |comm| comm.send(peer, envelope(port.rank(), 9, 0), vec![1u8]).await);
        assert!(sent.is_err());
        assert!(Region::register(port, vec![0u8; 8]).is_ok());
    }
    port.abort(0);
    // The event of this is heard while that of the other is.
    port.abort(1);
}

fn open(port: &Port) {
    port.open_context(1, 0, Rank::all(port.world_size()).collect(), OnLoss::Close);
}

on_every_wire! {
    a_subscriber_may_call_back => |wire: Wire| {
        let heard = Arc::new(AtomicU32::new(0));
        let told = Arc::clone(&heard);
        common::run("events", wire.world(2), move |port| {
            open(&port);
            let (ports, heard) = (vec![Arc::downgrade(&port)], Arc::clone(&told));
            tracing::subscriber::with_default(CallsBack { ports, heard }, || {
                if port.rank() == Rank(1) {
                    port.abort(0);
                }
                while port.failure(0).is_none() {
                    turn(&port);
                }
                assert_eq!(port.failure(0), Some(Failure::Aborted(Rank(1))));
                assert!(port.failure(1).is_some());
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
        open(&port);
        ports.push(Arc::downgrade(&port));
        let (ports, heard) = (ports.clone(), Arc::clone(&heard));
        let subscriber = tracing::Dispatch::new(CallsBack { ports, heard });
        std::future::poll_fn(move |_| {
            let _told = tracing::dispatcher::set_default(&subscriber);
            if port.rank() == Rank(2) {
                port.abort(0);
            }
            port.progress();
            port.failure(0).map_or(std::task::Poll::Pending, std::task::Poll::Ready)
        })
    });
    // Each port that was called back has aborted as well.
    assert!(failures.unwrap().iter().all(|failure| matches!(failure, Failure::Aborted(_))));
    assert!(heard.load(Ordering::Relaxed) > 0);
}

/// Counts warnings.
struct Warnings(Arc<AtomicU32>);

impl Subscriber for Warnings {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        *metadata.level() == tracing::Level::WARN
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, _: &Event<'_>) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

on_every_wire! {
    messages_that_nobody_asked_for_are_told_when_their_context_is_left => |wire: Wire| {
        let ports: Vec<Arc<Port>> = wire.world(2).into_iter().map(Port::new).collect();
        std::thread::scope(|threads| {
            for port in ports {
                threads.spawn(move || {
                    let own = port.rank();
                    for (context, is_asked) in [(1, false), (2, true)] {
                        port.open_context(context, 0, Rank::all(2).collect(), OnLoss::Close);
                        let (stray, last) = (within(context, 0, Rank(0), 1), within(context, 0, Rank(0), 2));
                        block(&port, async |comm| {
                            if own == Rank(0) {
                                comm.send(Rank(1), stray, vec![1u8; 3]).await.unwrap();
                                comm.send(Rank(1), last, ()).await.unwrap();
                                return;
                            }
                            if is_asked {
                                comm.recv(Rank(0), stray, vec![0u8; 3]).await.unwrap();
                            }
                            comm.recv(Rank(0), last, ()).await.unwrap();
                        });
                        let heard = Arc::new(AtomicU32::new(0));
                        tracing::subscriber::with_default(Warnings(Arc::clone(&heard)), || {
                            port.forget_context(context);
                        });
                        let is_told = own == Rank(1) && !is_asked;
                        assert_eq!(heard.load(Ordering::Relaxed), u32::from(is_told), "{own:?} {context}");
                    }
                    common::meet(&port);
                });
            }
        });
    };
}
