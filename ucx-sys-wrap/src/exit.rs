//! Transports that must leave before the process unloads their library.
//!
//! A transport over a library with destructors at process exit registers an exit handler that calls
//! [`leave_all`]. The ports of such transports are [kept](keep) here, so that ports do not depend on
//! transports.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use parking_lot::{Mutex, RwLock, RwLockReadGuard};

use crate::buffer::Port;

/// How long an exit waits for threads inside the library. Then it goes on: a crash is no worse than a hang.
const PATIENCE: Duration = Duration::from_secs(2);

/// Whether the process has begun to exit, so that nothing new is started.
static HAS_BEGUN: AtomicBool = AtomicBool::new(false);

/// Whether the library must no longer be entered. Set while no thread is inside, unless the wait was too
/// long.
static IS_SHUT: AtomicBool = AtomicBool::new(false);

/// Held by threads that create or drop objects of the library.
static INSIDE: RwLock<()> = RwLock::new(());

/// The ports of transports that must leave; `None` once they have left.
static KEPT: Mutex<Option<Vec<Weak<Port>>>> = Mutex::new(Some(Vec::new()));

/// Keeps the library from being unloaded.
pub(crate) struct Inside(#[expect(dead_code, reason = "held, not used")] RwLockReadGuard<'static, ()>);

/// Enters the library without a port; `None` if it may be unloaded at any time because the process exits.
/// Then the caller must leak its objects.
pub(crate) fn enter() -> Option<Inside> {
    // Recursive, because a failing constructor drops what it has made.
    let inside = Inside(INSIDE.read_recursive());
    if IS_SHUT.load(Ordering::SeqCst) { None } else { Some(inside) }
}

pub(crate) fn has_begun() -> bool {
    HAS_BEGUN.load(Ordering::SeqCst)
}

/// Registers a port whose transport must leave when the process exits.
pub(crate) fn keep(port: &Arc<Port>) {
    match &mut *KEPT.lock() {
        Some(kept) => {
            kept.retain(|kept| kept.strong_count() > 0);
            kept.push(Arc::downgrade(port));
        }
        None => {
            let inside = enter();
            port.leave_with_process(inside.is_some(), Instant::now());
        }
    }
}

/// Makes all registered transports leave, and closes the library to all threads.
pub(crate) fn leave_all() {
    let until = Instant::now() + PATIENCE;
    HAS_BEGUN.store(true, Ordering::SeqCst);
    let kept = KEPT.try_lock_until(until).and_then(|mut kept| kept.take());
    for port in kept.into_iter().flatten().filter_map(|port| port.upgrade()) {
        port.leave_with_process(true, until);
    }
    let nobody_inside = INSIDE.try_write_until(until);
    IS_SHUT.store(true, Ordering::SeqCst);
    drop(nobody_inside);
}
