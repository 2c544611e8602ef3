//! The dense collectives of Brevity that are measured.

use std::future::Future;
use std::pin::Pin;

use brevity::collectives::Result;
use brevity::{Group, Handle, ReduceOp};

use super::{Collective, Number, ROOT, Vectors};

/// A collective of Brevity.
pub struct Entry<T> {
    /// Which one.
    pub collective: Collective,
    /// Calls the blocking form.
    pub run: fn(&Group, &mut Vectors<T>) -> Result<()>,
    /// Starts the form that does not block.
    pub start: fn(&Group, Vectors<T>) -> Started<T>,
}

/// What `brevity perf` and `bench/compare collectives` measure: a line for each collective.
fn ours<T: Number>() -> [Entry<T>; 9] {
    use Collective as C;
    const SUM: ReduceOp = ReduceOp::Sum;
    [
        Entry::of(
            C::AllReduce,
            |g, v| g.all_reduce(&mut v.output, SUM),
            |g, Vectors { input, output }| {
                Started::new(g.start_all_reduce(output, SUM), |output| Vectors { input, output })
            },
        ),
        Entry::of(
            C::Broadcast,
            |g, v| g.broadcast(&mut v.output, ROOT),
            |g, Vectors { input, output }| {
                Started::new(g.start_broadcast(output, ROOT), |output| Vectors { input, output })
            },
        ),
        Entry::of(
            C::Reduce,
            |g, v| g.reduce(&v.input, &mut v.output, SUM, ROOT),
            |g, v| Started::apart(g.start_reduce(v.input, v.output, SUM, ROOT)),
        ),
        Entry::of(
            C::ReduceScatter,
            |g, v| g.reduce_scatter(&v.input, &mut v.output, SUM),
            |g, v| Started::apart(g.start_reduce_scatter(v.input, v.output, SUM)),
        ),
        Entry::of(
            C::AllGather,
            |g, v| g.all_gather(&v.input, &mut v.output),
            |g, v| Started::apart(g.start_all_gather(v.input, v.output)),
        ),
        Entry::of(
            C::Gather,
            |g, v| g.gather(&v.input, &mut v.output, ROOT),
            |g, v| Started::apart(g.start_gather(v.input, v.output, ROOT)),
        ),
        Entry::of(
            C::Scatter,
            |g, v| g.scatter(&v.input, &mut v.output, ROOT),
            |g, v| Started::apart(g.start_scatter(v.input, v.output, ROOT)),
        ),
        Entry::of(
            C::AllToAll,
            |g, v| g.all_to_all(&v.input, &mut v.output),
            |g, v| Started::apart(g.start_all_to_all(v.input, v.output)),
        ),
        Entry::of(C::Barrier, |g, _| g.barrier(), |g, v| Started::new(g.start_barrier(), |()| v)),
    ]
}

/// The collectives of Brevity, in the order of tables.
pub fn measured() -> impl Iterator<Item = Collective> {
    ours::<f32>().into_iter().map(|entry| entry.collective)
}

/// How a collective is called.
#[must_use]
pub fn entry<T: Number>(collective: Collective) -> Option<Entry<T>> {
    ours().into_iter().find(|entry| entry.collective == collective)
}

impl<T> Entry<T> {
    fn of(
        collective: Collective,
        run: fn(&Group, &mut Vectors<T>) -> Result<()>,
        start: fn(&Group, Vectors<T>) -> Started<T>,
    ) -> Self {
        Self { collective, run, start }
    }
}

/// A call that has been started, with the memory that it was given.
pub struct Started<T>(Box<dyn Call<T>>);

type Ended<T> = (Vectors<T>, Result<()>);

/// An input and an output.
type Apart<T> = (Vec<T>, Vec<T>);

trait Call<T> {
    fn test(&self) -> bool;
    fn wait(self: Box<Self>) -> Ended<T>;
    fn ended(self: Box<Self>) -> Pin<Box<dyn Future<Output = Ended<T>>>>;
}

/// A call, and how the vectors come back from what was lent to it.
struct Lent<B, F> {
    handle: Handle<(B, Result<()>)>,
    back: F,
}

impl<T: 'static> Started<T> {
    fn new<B: Send + 'static>(
        handle: Handle<(B, Result<()>)>,
        back: impl FnOnce(B) -> Vectors<T> + 'static,
    ) -> Self {
        Self(Box::new(Lent { handle, back }))
    }

    /// Of a call that has an input and an output.
    pub(crate) fn apart(handle: Handle<(Apart<T>, Result<()>)>) -> Self
    where
        T: Send,
    {
        Self::new(handle, |(input, output)| Vectors { input, output })
    }

    /// Moves the call, and returns whether it has ended.
    #[must_use]
    pub fn test(&self) -> bool {
        self.0.test()
    }

    /// Waits for the end of the call. Returns its memory, and how it ended.
    pub fn wait(self) -> (Vectors<T>, Result<()>) {
        self.0.wait()
    }

    /// Awaits the end of the call, where nothing may block.
    pub async fn ended(self) -> (Vectors<T>, Result<()>) {
        self.0.ended().await
    }
}

impl<T, B, F> Call<T> for Lent<B, F>
where
    T: 'static,
    B: Send + 'static,
    F: FnOnce(B) -> Vectors<T> + 'static,
{
    fn test(&self) -> bool {
        self.handle.test()
    }

    fn wait(self: Box<Self>) -> Ended<T> {
        let (lent, result) = self.handle.wait();
        ((self.back)(lent), result)
    }

    fn ended(self: Box<Self>) -> Pin<Box<dyn Future<Output = Ended<T>>>> {
        Box::pin(async move {
            let (lent, result) = self.handle.await;
            ((self.back)(lent), result)
        })
    }
}
