//! Process exit while some threads use UCX.
//!
//! `exit` runs the registered handlers and then the destructors of the libraries, while other threads go on.
//! UCX's destructors destroy what its calls use: a thread inside, or one that enters later, crashes. So
//! loading UCX registers a handler, which runs before those destructors. It makes the transports that a
//! [`Port`](crate::buffer::Port) holds leave, and waits until no thread makes or drops a transport; until
//! then dropping one says goodbye as usual. Later ones do not enter UCX. Calls in other threads end as after
//! [`Port::abort`](crate::buffer::Port::abort).
//!
//! Operations pay nothing for this: the port's own lock keeps the other threads out.

use std::ffi::c_int;
use std::panic::catch_unwind;
use std::process;
use std::sync::OnceLock;

use crate::exit::{Inside, leave_all};
pub(super) use crate::exit::{enter, has_begun};
use crate::{Error, Result};

/// The process that has loaded UCX; a forked child has none of its threads.
static PROCESS: OnceLock<u32> = OnceLock::new();

/// Registers the handler. Called once, when UCX is loaded.
pub(super) fn prepare() {
    unsafe extern "C" {
        /// The C library's. A shared library's handlers run at the latest when it is unloaded.
        fn atexit(handler: extern "C" fn()) -> c_int;
    }
    if PROCESS.set(process::id()).is_ok() {
        // SAFETY: the handler is a function of this library, does not panic, and lives as long as the library
        // does.
        let status = unsafe { atexit(leave) };
        if status != 0 {
            tracing::warn!("no handler can be registered: exiting while threads use UCX may crash");
        }
    }
}

/// Like [`enter`].
///
/// # Errors
/// [`Error::Unavailable`] when the process exits.
pub(super) fn enter_to_make() -> Result<Inside> {
    enter()
        .filter(|_| !has_begun())
        .ok_or_else(|| Error::Unavailable { name: "ucx", why: "the process exits".into() })
}

extern "C" fn leave() {
    if PROCESS.get() == Some(&process::id()) {
        // Nothing may unwind into the C library. The panic has printed its message.
        let _ = catch_unwind(leave_all);
    }
}

#[cfg(test)]
mod tests {
    use std::process::Command;
    use std::sync::Arc;
    use std::thread;

    use super::*;
    use crate::Rank;
    use crate::buffer::Port;
    use crate::ucx::worlds::{has_ucx, world};

    const NAME: &str = "ucx::exiting::tests::who_drops_while_exit_waits_for_another_enters_ucx";
    const CHILD: &str = "BREVITY_TEST_EXITS";

    /// Runs in a process of its own, because it exits: one thread uses a port until another has dropped its
    /// group.
    #[test]
    fn who_drops_while_exit_waits_for_another_enters_ucx() {
        if std::env::var_os(CHILD).is_some() {
            exit_while_another_drops();
        }
        if !has_ucx() {
            return;
        }
        let mut child = Command::new(std::env::current_exe().unwrap());
        let output = child.args([NAME, "--exact", "--nocapture"]).env(CHILD, "1").output().unwrap();
        assert_eq!(output.status.code(), Some(7), "{output:?}");
        let said = String::from_utf8(output.stderr).unwrap();
        assert!(said.contains("during: enters true") && said.contains("after: enters false"), "{said}");
    }

    extern "C" fn say_after() {
        eprintln!("after: enters {}", enter().is_some());
    }

    fn exit_while_another_drops() -> ! {
        unsafe extern "C" {
            fn atexit(handler: extern "C" fn()) -> c_int;
        }
        // SAFETY: the handler is a function of this program. Registered before UCX is loaded, it runs after
        // `leave`.
        assert_eq!(unsafe { atexit(say_after) }, 0);
        let ranks = world(2, &[]).into_iter().map(|rank| Port::new(Box::new(rank)));
        let [used, dropped] = <[Arc<Port>; 2]>::try_from(ranks.collect::<Vec<_>>()).ok().unwrap();
        let (in_use, is_in_use) = std::sync::mpsc::channel();
        thread::spawn(move || {
            let inside = used.enter_for_test();
            in_use.send(()).unwrap();
            while !has_begun() {
                thread::yield_now();
            }
            assert_eq!(dropped.rank(), Rank(1));
            drop(dropped);
            eprintln!("during: enters {}", enter().is_some());
            drop(inside);
        });
        is_in_use.recv().unwrap();
        process::exit(7);
    }
}
