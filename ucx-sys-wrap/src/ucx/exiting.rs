//! A process that exits while some of its threads use UCX.
//!
//! `exit` runs the handlers that were registered and then the destructors of the libraries, and all the while the other
//! threads go on. UCX's destructors take away what its calls use (its asynchronous contexts, its memory hooks): a thread
//! that is inside, or comes in later, crashes. So when UCX is loaded a handler is registered, which runs before the
//! destructors of UCX's own libraries. It has the transports leave that a [`Port`] holds, and waits until nobody makes or
//! drops one; what is made or dropped later does not enter UCX. Calls that are under way in other threads end as after [`Port::abort`].
//!
//! Operations cost nothing for this: the port's own lock keeps the other threads out.

use std::ffi::c_int;
use std::panic::catch_unwind;
use std::process;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::time::{Duration, Instant};

use parking_lot::{Mutex, RwLock, RwLockReadGuard};

use crate::buffer::Port;
use crate::{Error, Result};

/// How long an exit waits for threads that are inside. It goes on without them: a crash is not worse than a hang.
const PATIENCE: Duration = Duration::from_secs(2);

/// Whether the process has begun to exit.
static HAS_BEGUN: AtomicBool = AtomicBool::new(false);

/// Shared by those that make or drop what is of UCX.
static INSIDE: RwLock<()> = RwLock::new(());

/// The ports over UCX; `None` once they have left.
static PORTS: Mutex<Option<Vec<Weak<Port>>>> = Mutex::new(Some(Vec::new()));

/// The process that has loaded UCX: not a child that it has forked, which has none of its threads.
static PROCESS: OnceLock<u32> = OnceLock::new();

/// While it lives, the process's libraries stay.
pub(super) struct Inside(#[expect(dead_code, reason = "held, not used")] RwLockReadGuard<'static, ()>);

/// Has the exit of the process wait for those inside. Called once, when UCX is loaded.
pub(super) fn prepare() {
    unsafe extern "C" {
        /// The C library's; the handlers of a shared library run at the latest when that is unloaded.
        fn atexit(handler: extern "C" fn()) -> c_int;
    }
    if PROCESS.set(process::id()).is_ok() {
        // SAFETY: the handler is a function of this library, does not panic, and lives as long as the library does.
        let status = unsafe { atexit(leave_all) };
        if status != 0 {
            tracing::warn!("no handler can be registered: exiting while threads use UCX may crash");
        }
    }
}

/// Enters UCX, without a port; `None` when the process exits: then its objects are left to it.
pub(super) fn enter() -> Option<Inside> {
    // Recursive: who fails to make something drops it inside.
    let inside = Inside(INSIDE.read_recursive());
    if has_begun() { None } else { Some(inside) }
}

/// As [`enter`].
///
/// # Errors
/// [`Error::Unavailable`] when the process exits.
pub(super) fn enter_to_make() -> Result<Inside> {
    enter().ok_or_else(|| Error::Unavailable { name: "ucx", why: "the process exits".into() })
}

/// Whether the process has begun to exit.
pub(super) fn has_begun() -> bool {
    HAS_BEGUN.load(Ordering::SeqCst)
}

/// Has the transport of `port` leave when the process exits.
pub(crate) fn keep(port: &Arc<Port>) {
    match &mut *PORTS.lock() {
        Some(ports) => {
            ports.retain(|port| port.strong_count() > 0);
            ports.push(Arc::downgrade(port));
        }
        None => port.leave(false, Instant::now()),
    }
}

/// The handler.
extern "C" fn leave_all() {
    if PROCESS.get() != Some(&process::id()) {
        return;
    }
    // Nothing may unwind into the C library. What a panic has to say it has said.
    let _ = catch_unwind(|| {
        let until = Instant::now() + PATIENCE;
        HAS_BEGUN.store(true, Ordering::SeqCst);
        drop(INSIDE.try_write_until(until));
        let ports = PORTS.try_lock_until(until).and_then(|mut ports| ports.take());
        for port in ports.into_iter().flatten().filter_map(|port| port.upgrade()) {
            port.leave(true, until);
        }
    });
}
