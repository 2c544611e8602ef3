//! Polling as executors do that poll a future again only when it has woken them.

use std::future::{Future, poll_fn};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::time::{Duration, Instant};

/// How long a future may go without waking; it only has to tell slow from stuck.
const PATIENCE: Duration = Duration::from_secs(30);

/// Whether the future has woken its task since it was polled last.
struct Flag(AtomicBool);

impl Wake for Flag {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Ordering::Release);
    }
}

/// Runs `future`, polling it once and then only when it has woken its task, however often this is polled:
/// what `FuturesUnordered` does with its futures.
///
/// # Panics
/// When the future waits for 30 seconds without waking.
pub async fn only_when_woken<F: Future>(future: F) -> F::Output {
    let flag = Arc::new(Flag(AtomicBool::new(true)));
    let waker = Waker::from(Arc::clone(&flag));
    let (mut future, mut polled) = (Box::pin(future), Instant::now());
    poll_fn(move |_| {
        if flag.0.swap(false, Ordering::Acquire) {
            polled = Instant::now();
            return future.as_mut().poll(&mut Context::from_waker(&waker));
        }
        assert!(polled.elapsed() < PATIENCE, "a future waits and does not wake its task");
        Poll::Pending
    })
    .await
}
