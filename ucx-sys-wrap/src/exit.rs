//! What must leave before the process's libraries do.
//!
//! A transport over a library whose destructors run at the exit of the process registers its handler with the C
//! library, and that handler calls [`leave_all`]. Ports of such transports are [kept](keep) here, so that ports
//! know no transport.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use parking_lot::{Mutex, RwLock, RwLockReadGuard};

/// How long an exit waits for threads that are inside. It goes on without them: a crash is not worse than a
/// hang.
const PATIENCE: Duration = Duration::from_secs(2);

/// Whether the process has begun to exit: nothing new is begun.
static HAS_BEGUN: AtomicBool = AtomicBool::new(false);

/// Whether the library must not be entered any more. Set while nobody is inside, unless those took too long.
static IS_SHUT: AtomicBool = AtomicBool::new(false);

/// Shared by those that make or drop what is of the library.
static INSIDE: RwLock<()> = RwLock::new(());

/// What is to leave; `None` once it has left.
static KEPT: Mutex<Option<Vec<Weak<dyn Leave>>>> = Mutex::new(Some(Vec::new()));

/// While it lives, the process's libraries stay.
pub(crate) struct Inside(#[expect(dead_code, reason = "held, not used")] RwLockReadGuard<'static, ()>);

/// Holds a transport that stands on a library.
pub(crate) trait Leave: Send + Sync {
    /// Has the transport leave because the process exits, if this can enter it until then.
    fn leave(&self, is_library_there: bool, until: Instant);
}

/// Enters the library, without a port; `None` when it may go at any moment, because the process exits: then its
/// objects are left to it.
pub(crate) fn enter() -> Option<Inside> {
    // Recursive: who fails to make something drops it inside.
    let inside = Inside(INSIDE.read_recursive());
    if IS_SHUT.load(Ordering::SeqCst) { None } else { Some(inside) }
}

/// Whether the process has begun to exit.
pub(crate) fn has_begun() -> bool {
    HAS_BEGUN.load(Ordering::SeqCst)
}

/// Has it leave when the process exits.
pub(crate) fn keep(leaves: &Arc<impl Leave + 'static>) {
    match &mut *KEPT.lock() {
        Some(kept) => {
            kept.retain(|kept| kept.strong_count() > 0);
            let leaves: Weak<dyn Leave> = Arc::downgrade(leaves) as Weak<dyn Leave>;
            kept.push(leaves);
        }
        None => {
            let inside = enter();
            leaves.leave(inside.is_some(), Instant::now());
        }
    }
}

/// Has all that is kept leave, and keeps everybody out of the library from then on.
pub(crate) fn leave_all() {
    let until = Instant::now() + PATIENCE;
    HAS_BEGUN.store(true, Ordering::SeqCst);
    let kept = KEPT.try_lock_until(until).and_then(|mut kept| kept.take());
    for leaves in kept.into_iter().flatten().filter_map(|leaves| leaves.upgrade()) {
        leaves.leave(true, until);
    }
    let nobody_inside = INSIDE.try_write_until(until);
    IS_SHUT.store(true, Ordering::SeqCst);
    drop(nobody_inside);
}
