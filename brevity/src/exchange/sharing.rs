//! Sharing the state: ranks that come back, or are new, get the model and the state of another one.
//!
//! A part of what an exchange keeps is the same on all ranks: the number of steps, densities, the warm start
//! of low-rank tensors, the projections of unbiased ones, and momenta after aggregation. One rank sends it to
//! all others, in the form of a saved state. Its length follows from what the exchange was built with, which
//! is the same on all ranks. The rest is a rank's own: residuals, and momentum before selection.

use std::mem::take;
use std::time::Duration;

use brevity_collectives::dense::broadcast;
use brevity_collectives::{
    Call, Chunk, DataType, Description, Element, Error as Collective, Group, Operation,
};
use brevity_compress::low_rank::Batch;
use brevity_compress::state::{self, Reader, State, Writer};
use brevity_compress::{Density, Error as Compress};

use super::bucket::Bucket;
use super::parts::{Parts, texts};
use super::post_momentum::PostMomentum;
use super::room::{self, Lacking};
use super::{GradientExchange, Tensor};
use crate::error::{Error, Result};

impl GradientExchange {
    /// Gives all ranks of `group` the model and the state of its rank `from`, and moves the exchange to the
    /// group: for ranks that come back after a loss, and for new ones. All ranks call it with the same
    /// `from`: those that have gone on with the exchange that they have, the others with one that they have
    /// just built on `group`, by the same calls of the builder; with the policies that were
    /// [chosen](Self::choice) in place of `auto`, which may choose otherwise there. Of several exchanges,
    /// ranks share the states in the order in which the others build them. Blocks until done.
    ///
    /// Afterwards `parameters` have the bits of those of rank `from`. They are the tensors of the model, and
    /// of what else must be equal, as the state of an optimiser: on all ranks as many, of the same lengths
    /// and type; none if the model travels otherwise. All exchanges have `from`'s number of
    /// [steps](Self::steps), densities, warm start of low-rank tensors, projections of unbiased ones, and
    /// momenta after aggregation, also where they had others. Thresholds and draws begin anew, on all ranks.
    /// What is a rank's own stays as it is: residuals, momentum before selection, and that of signum tensors.
    /// A new exchange has none, unless it has loaded them. So nothing is lost, and nothing counts twice.
    ///
    /// Costs a broadcast of the state (4 bytes an element of right factors, and of tensors with momentum
    /// after aggregation), a barrier, and a broadcast of each parameter.
    ///
    /// # Errors
    /// [`Error::Order`] in the middle of a step, and for an exchange that must [`go_on`](Self::go_on) before;
    /// [`NoSuchRank`](Collective::NoSuchRank) for `from`; [`Error::Memory`]. Nothing was sent then.
    ///
    /// [`Error::Memory`] or [`Error::State`] if what has arrived can't be taken over: the group is closed,
    /// and nothing has changed.
    ///
    /// [`Mismatch`](Collective::Mismatch) or [`Differs`](Collective::Differs) on all ranks if the exchanges
    /// were built differently, or if parameters or `from` differ. Nothing has changed.
    ///
    /// Other errors, for instance if a rank is lost: the exchange has not changed, and may go on in the next
    /// group. Parameters may have parts of `from`'s; where they were the same before, as on ranks that have
    /// gone on, they are as they were. Other ranks may have taken over model and state. In the next group all
    /// ranks call this again if any of them needs it (an all-reduce tells), with a `from` that has gone on,
    /// or that has returned from this call without an error.
    pub fn share_state<E: Element, G: AsMut<[E]>>(
        &mut self,
        group: &Group,
        from: u32,
        parameters: &mut [G],
    ) -> Result<()> {
        self.share_state_within(group, from, parameters, group.timeout())
    }

    /// Like [`share_state`](Self::share_state), with another timeout than that of the group, for each of its
    /// collectives.
    ///
    /// # Errors
    /// As for [`share_state`](Self::share_state).
    pub fn share_state_within<E: Element, G: AsMut<[E]>>(
        &mut self,
        group: &Group,
        from: u32,
        parameters: &mut [G],
        timeout: Duration,
    ) -> Result<()> {
        let mut sharing = self.sharing(group, from, (&lengths::<E, G>(parameters), E::TYPE))?;
        let (timed, own) = (group.with_timeout(timeout), take(&mut sharing.own));
        let state =
            timed.run_in_order(sharing.description, async |call| state_of_rank(call, own, from).await)?;
        self.read(&mut sharing, &state, group)?;
        timed.barrier()?;
        for parameter in parameters {
            timed.broadcast(parameter.as_mut(), from)?;
        }
        self.adopt(sharing, group);
        Ok(())
    }

    /// Like [`share_state`](Self::share_state), without blocking. Copies each parameter. If the future is
    /// dropped, the exchange has not changed, and the other ranks may have taken model and state.
    ///
    /// # Errors
    /// As for [`share_state`](Self::share_state).
    pub async fn share_state_async<E: Element, G: AsMut<[E]>>(
        &mut self,
        group: &Group,
        from: u32,
        parameters: &mut [G],
    ) -> Result<()> {
        let mut sharing = self.sharing(group, from, (&lengths::<E, G>(parameters), E::TYPE))?;
        let own = take(&mut sharing.own);
        let sent = group.start_in_order(sharing.description, (), move |call, ()| {
            Box::pin(state_of_rank(call, own, from))
        });
        let state = sent.await.1?;
        self.read(&mut sharing, &state, group)?;
        group.start_barrier().await.1?;
        for parameter in parameters {
            let (copied, sent) = group.start_broadcast::<E, _>(parameter.as_mut().to_vec(), from).await;
            sent?;
            parameter.as_mut().copy_from_slice(&copied);
        }
        self.adopt(sharing, group);
        Ok(())
    }

    /// Checks what this rank hands in, and describes it. Sends nothing.
    fn sharing(&self, group: &Group, from: u32, parameters: (&[usize], DataType)) -> Result<Sharing> {
        group.check_process()?;
        self.check_settled()?;
        let world_size = group.world_size();
        if from >= world_size {
            return Err(Collective::NoSuchRank { rank: from, world_size }.into());
        }
        let shared = Shared::of(&self.parts);
        let shared = shared.map_err(|bytes| Error::Memory { what: "state to be shared".into(), bytes })?;
        let mut own = Vec::new();
        state::save(&shared, &mut own)?;
        // One that was built on the group has its number.
        let is_there = self.group.is_same(group);
        let number = if is_there { self.parts.number } else { group.number_object() };
        let lines = lines(&self.parts.built, (number, from), parameters);
        let plan: Vec<u8> = lines.iter().flat_map(|line| [line.as_bytes(), b"\n"].concat()).collect();
        let description = Description::of_plan(Operation::EXCHANGE, &plan);
        group.note_plan(&description, lines.into_iter());
        Ok(Sharing { shared, own, number, description })
    }

    /// Reads the state that has arrived. If it can't be taken over, closes the group: all ranks get an error,
    /// and nothing has changed on any.
    fn read(&mut self, sharing: &mut Sharing, state: &[u8], group: &Group) -> Result<()> {
        let read = state::from_bytes(&mut sharing.shared, state).map_err(Error::from);
        let read = read.and_then(|()| self.parts.check_room(&sharing.shared.densities));
        if read.is_err() {
            group.abort();
        }
        read
    }

    /// Goes on in the group with what is shared.
    fn adopt(&mut self, sharing: Sharing, group: &Group) {
        let delivered = sharing.shared.delivered;
        sharing.shared.replace(&mut self.parts);
        self.move_as(group, sharing.number);
        // Ranks that an error keeps from taking over have counted as many.
        self.parts.delivered = delivered;
    }
}

fn lengths<E, G: AsMut<[E]>>(parameters: &mut [G]) -> Vec<usize> {
    parameters.iter_mut().map(|parameter| parameter.as_mut().len()).collect()
}

/// The state of rank `from`, which has as many bytes as this rank's own.
async fn state_of_rank(call: &Call<'_, '_>, own: Vec<u8>, from: u32) -> Result<Vec<u8>, Collective> {
    Ok(broadcast(call, Chunk::from(own), from).await?.into_vec())
}

/// What ranks must have alike to share a state.
fn lines(built: &[String], (number, from): (u32, u32), parameters: (&[usize], DataType)) -> Vec<String> {
    let (lengths, element) = parameters;
    let head = format!("state of rank {from} for exchange {number} and {} parameters", lengths.len());
    let parameter = |(position, length)| format!("parameter {position} of {length} {element}");
    let parameters = lengths.iter().enumerate().map(parameter);
    [head].into_iter().chain(built.iter().cloned()).chain(parameters).collect()
}

/// What an exchange was built with, in words: also what no step tells other ranks.
pub(super) fn built(parts: &Parts, seed: u64) -> Vec<String> {
    let buckets: Vec<Vec<usize>> = parts.buckets.iter().map(Bucket::tensors).collect();
    let Parts { tensors, course, over_participants, keeps_going, .. } = parts;
    let settings = format!(
        "buckets {buckets:?}, seed {seed}, schedule {:?}, average over participants {over_participants}, \
         keep going {keeps_going}",
        course.schedule
    );
    texts(tensors, &parts.buckets).chain([settings]).collect()
}

/// A state while ranks share it.
struct Sharing {
    shared: Shared,
    /// This rank's own, as bytes.
    own: Vec<u8>,
    /// The number of the exchange in the group.
    number: u32,
    description: Description,
}

/// What exchanges have alike on all ranks, apart from what they were built with.
struct Shared {
    steps: u64,
    /// The steps that were delivered.
    delivered: u64,
    /// Of each sparse tensor its own.
    densities: Vec<Option<Density>>,
    /// The warm start of each bucket of low rank.
    batches: Vec<Batch>,
    /// The step of each bucket of unbiased low rank, and its origin.
    projections: Vec<(u64, u64)>,
    momenta: Vec<PostMomentum>,
}

impl Shared {
    fn of(parts: &Parts) -> Result<Self, Lacking> {
        let Parts { tensors, buckets, course, delivered, .. } = parts;
        let momenta = || tensors.iter().filter_map(|tensor| tensor.momentum.as_ref());
        let batches = || buckets.iter().filter_map(Bucket::warm_start);
        let elements =
            batches().map(Batch::q_len).sum::<usize>() + momenta().map(PostMomentum::len).sum::<usize>();
        // This copy, and as much as bytes twice.
        room::check(elements.saturating_mul(3 * size_of::<f32>()))?;
        Ok(Self {
            steps: course.steps,
            delivered: *delivered,
            densities: course.own.clone(),
            batches: batches().cloned().collect(),
            projections: buckets.iter().filter_map(Bucket::projection).collect(),
            momenta: momenta().cloned().collect(),
        })
    }

    /// Replaces what the exchange has, which was built with the same.
    fn replace(self, parts: &mut Parts) {
        parts.course.steps = self.steps;
        parts.course.own = self.densities;
        let (mut batches, mut projections) = (self.batches.into_iter(), self.projections.into_iter());
        for bucket in &mut parts.buckets {
            bucket.resume(&mut batches, &mut projections);
        }
        let momenta = parts.tensors.iter_mut().filter_map(|Tensor { momentum, .. }| momentum.as_mut());
        momenta.zip(self.momenta).for_each(|(momentum, shared)| *momentum = shared);
        parts.follow_course();
    }
}

/// The number of steps, that of the steps that were delivered, the densities of sparse tensors
/// in the builder's order, then by bucket the warm starts with their origins, and the steps of projections
/// with theirs, then momenta after aggregation in the builder's order, with theirs.
impl State for Shared {
    fn kind(&self) -> [u8; 4] {
        *b"shar"
    }

    fn shape(&self) -> Vec<u64> {
        let factors: usize = self.batches.iter().map(Batch::q_len).sum();
        let momenta: usize = self.momenta.iter().map(PostMomentum::len).sum();
        let densities = self.densities.iter().flatten().count();
        [densities, factors, self.projections.len(), momenta].map(|length| length as u64).to_vec()
    }

    fn write_contents(&self, contents: &mut Writer) {
        contents.u64(self.steps);
        contents.u64(self.delivered);
        self.densities.iter().flatten().for_each(|density| contents.f64(density.share()));
        for batch in &self.batches {
            contents.part(batch);
            contents.u64(batch.origin());
        }
        for (step, origin) in &self.projections {
            contents.u64(*step);
            contents.u64(*origin);
        }
        self.momenta.iter().for_each(|momentum| momentum.write_shared(contents));
    }

    fn read_contents(&mut self, contents: &mut Reader<'_>) -> Result<(), Compress> {
        self.steps = contents.u64()?;
        self.delivered = contents.u64()?;
        for density in self.densities.iter_mut().flatten() {
            *density = Density::new(contents.f64()?)?;
        }
        for batch in &mut self.batches {
            contents.part(batch)?;
            batch.set_origin(contents.u64()?);
        }
        for (step, origin) in &mut self.projections {
            (*step, *origin) = (contents.u64()?, contents.u64()?);
        }
        self.momenta.iter_mut().try_for_each(|momentum| momentum.read_shared(contents))
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::super::gradient::all_of;
    use super::super::post_momentum;
    use super::*;
    use crate::Policy;

    /// Runs `body` on as many ranks as there are values.
    fn on_ranks<T: Send, R: Send>(values: Vec<T>, body: impl Fn(Group, T) -> R + Sync) -> Vec<R> {
        let world = ucx_sys_wrap::local::world(values.len() as u32);
        thread::scope(|scope| {
            let ranks = world.into_iter().zip(values).map(|(transport, value)| {
                let body = &body;
                scope.spawn(move || body(Group::new(Box::new(transport), Default::default()), value))
            });
            let ranks: Vec<_> = ranks.collect();
            ranks.into_iter().map(|rank| rank.join().unwrap()).collect()
        })
    }

    fn exchange(group: &Group) -> GradientExchange {
        GradientExchange::builder(group)
            .tensor("low rank", [6, 10], Policy::low_rank(2).min_compression(1.0).post_momentum(0.5))
            .tensor("unbiased", [6, 10], Policy::unbiased_low_rank(2).min_compression(1.0))
            .tensor("top-k", [60], Policy::topk(0.1))
            .build()
            .unwrap()
    }

    fn bytes(exchange: &GradientExchange) -> Vec<u8> {
        state::to_bytes(&Shared::of(&exchange.parts).unwrap())
    }

    fn residuals(exchange: &GradientExchange) -> Vec<Vec<f32>> {
        exchange.tensors().map(|(name, _)| exchange.residual(name).unwrap()).collect()
    }

    /// The exchanges of two ranks after three steps.
    fn used() -> Vec<GradientExchange> {
        on_ranks(vec![(), ()], |group, ()| {
            let mut exchange = exchange(&group);
            for step in 0..3 {
                let value = |place: usize| ((place * place + step + group.rank() as usize) % 17) as f32;
                let gradient: Vec<f32> = (0..60).map(value).collect();
                exchange.average(&mut vec![gradient; 3]).unwrap();
            }
            exchange.set_density("top-k", 0.5).unwrap();
            exchange
        })
    }

    #[test]
    fn all_ranks_have_the_state_of_one() {
        let mut used = used();
        let expected = bytes(&used[1]);
        assert_eq!(expected, bytes(&used[0]));
        // This rank has no warm start and no momentum any more, and another place in a schedule.
        used[0].rejoin(&Group::solo());
        used[0].set_steps(9).unwrap();
        assert_ne!(expected, bytes(&used[0]));
        let exchanges = used.into_iter().map(Some).chain([None]).collect();
        on_ranks(exchanges, |group, kept: Option<GradientExchange>| {
            let is_new = kept.is_none();
            let mut exchange = kept.unwrap_or_else(|| exchange(&group));
            let before = residuals(&exchange);
            assert_eq!(before.iter().flatten().all(|value| *value == 0.0), is_new);
            assert!(group.rank() == 1 || expected != bytes(&exchange));
            exchange.share_state(&group, 1, &mut [[group.rank() as f32]]).unwrap();
            assert_eq!(expected, bytes(&exchange));
            assert_eq!((before, exchange.steps()), (residuals(&exchange), 3));
            assert_eq!((exchange.number(), exchange.density("top-k")), (0, Some(0.5)));
            assert!(exchange.group().is_same(&group));
            exchange.average(&mut vec![vec![1.0f32; 60]; 3]).unwrap();
        });
    }

    #[test]
    fn bytes_that_end_early_are_refused() {
        let used = used();
        let state = bytes(&used[0]);
        let mut shared = Shared::of(&used[0].parts).unwrap();
        for length in 0..state.len() {
            assert!(state::from_bytes(&mut shared, &state[..length]).is_err(), "{length} bytes");
        }
        assert!(state::from_bytes(&mut shared, &[&state[..], &[0]].concat()).is_err());
        assert_eq!(state::to_bytes(&shared), state);
    }

    #[test]
    fn a_state_that_is_impossible_changes_nothing() {
        let mut used = used();
        let before = bytes(&used[1]);
        let mut averages = vec![vec![f32::NAN; 60]; 3];
        post_momentum::apply(&mut used[0].parts.tensors, &mut all_of(&mut averages));
        on_ranks(used, |group, mut exchange| {
            let mut parameter = [[group.rank() as f32]];
            let refused = exchange.share_state(&group, 0, &mut parameter).unwrap_err();
            assert!(matches!(refused, Error::State(_) | Error::Collective(_)), "{refused}");
            assert!(parameter == [[group.rank() as f32]] && group.is_closed());
            assert!(group.rank() == 0 || before == bytes(&exchange));
            assert!(!exchange.group().is_same(&group));
        });
    }
}
