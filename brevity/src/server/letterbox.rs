//! A place for one value, for which a thread or a task waits.

use std::task::{Context, Poll, Waker};
use std::time::Duration;

use parking_lot::{Condvar, Mutex};

/// Holds one value until it is taken. Whoever waits is woken by a value, and when nobody puts one any more.
pub(super) struct Letterbox<T> {
    inside: Mutex<Inside<T>>,
    changed: Condvar,
}

struct Inside<T> {
    letter: Option<T>,
    is_closed: bool,
    waker: Option<Waker>,
}

impl<T> Default for Letterbox<T> {
    fn default() -> Self {
        let inside = Inside { letter: None, is_closed: false, waker: None };
        Self { inside: Mutex::new(inside), changed: Condvar::new() }
    }
}

impl<T> Letterbox<T> {
    /// Puts a value, in place of one that was not taken.
    pub(super) fn put(&self, letter: T) {
        self.change(|inside| inside.letter = Some(letter));
    }

    /// No value comes any more.
    pub(super) fn close(&self) {
        self.change(|inside| inside.is_closed = true);
    }

    fn change(&self, change: impl FnOnce(&mut Inside<T>)) {
        let mut inside = self.inside.lock();
        change(&mut inside);
        let waker = inside.waker.take();
        // Foreign code: not under the lock.
        drop(inside);
        self.changed.notify_all();
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    /// Waits for a value, at most so long; `None` if none comes any more.
    pub(super) fn wait(&self, longest: Duration) -> Poll<Option<T>> {
        let mut inside = self.inside.lock();
        self.changed.wait_while_for(&mut inside, |inside| inside.is_empty(), longest);
        inside.take()
    }

    /// Waits at most so long until there is a value or none comes any more, and leaves it there.
    pub(super) fn await_letter(&self, longest: Duration) {
        self.changed.wait_while_for(&mut self.inside.lock(), |inside| inside.is_empty(), longest);
    }

    /// Like [`wait`](Self::wait), for a task. One task waits at a time.
    pub(super) fn poll(&self, context: &Context<'_>) -> Poll<Option<T>> {
        let mut inside = self.inside.lock();
        let taken = inside.take();
        let before = if taken.is_pending() { inside.waker.replace(context.waker().clone()) } else { None };
        drop(inside);
        // Foreign code, too.
        drop(before);
        taken
    }
}

impl<T> Inside<T> {
    fn is_empty(&self) -> bool {
        self.letter.is_none() && !self.is_closed
    }

    fn take(&mut self) -> Poll<Option<T>> {
        if self.is_empty() { Poll::Pending } else { Poll::Ready(self.letter.take()) }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU32, Ordering};
    use std::task::Wake;
    use std::thread;

    use super::*;

    const PATIENCE: Duration = Duration::from_secs(60);

    #[derive(Default)]
    struct Count(AtomicU32);

    impl Wake for Count {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::SeqCst);
        }
    }

    #[test]
    fn a_thread_that_waits_gets_what_is_put() {
        let letterbox = Arc::<Letterbox<u32>>::default();
        let there = Arc::clone(&letterbox);
        let waiting = thread::spawn(move || [there.wait(PATIENCE), there.wait(PATIENCE)]);
        letterbox.put(7);
        let begun = std::time::Instant::now();
        while letterbox.inside.lock().letter.is_some() && begun.elapsed() < PATIENCE {
            thread::yield_now();
        }
        letterbox.close();
        assert_eq!(waiting.join().unwrap(), [Poll::Ready(Some(7)), Poll::Ready(None)]);
        assert_eq!(Letterbox::<u32>::default().wait(Duration::ZERO), Poll::Pending);
        letterbox.await_letter(PATIENCE);
    }

    #[test]
    fn a_task_is_woken_once_for_each_change() {
        let (letterbox, count) = (Letterbox::default(), Arc::<Count>::default());
        let waker = Waker::from(Arc::clone(&count));
        let context = Context::from_waker(&waker);
        let woken = || count.0.load(Ordering::SeqCst);
        assert_eq!((letterbox.poll(&context), woken()), (Poll::Pending, 0));
        letterbox.put(1);
        letterbox.put(2);
        assert_eq!((woken(), letterbox.poll(&context)), (1, Poll::Ready(Some(2))));
        assert_eq!(letterbox.poll(&context), Poll::Pending);
        letterbox.close();
        assert_eq!((woken(), letterbox.poll(&context)), (2, Poll::Ready(None)));
    }
}
