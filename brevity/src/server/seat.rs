//! What a worker keeps for one shard: its part of the residuals, the number of its last push, and the pushes
//! of which it does not know whether they were applied.

use std::collections::VecDeque;
use std::ops::{Range, RangeInclusive};

use brevity_compress::codec::{Encoder, decode};
use brevity_compress::quantise::Quantiser;
use brevity_compress::{Error as Compress, SparseVec};

use super::answers::differences;
use super::lane::Lane;
use super::layout::ShardLayout;
use super::plan::Plan;
use super::trailer::{Kind, Trailer, read_dense, write_dense};
use crate::error::{Error, Result};

/// A step that no worker reaches, so that numbers do not overflow.
pub(super) const MOST_STEPS: u64 = 1 << 62;

/// A worker's side of one shard. No network: messages out, replies in.
pub(super) struct Seat {
    pub(super) shard: usize,
    pub(super) lanes: Vec<Lane>,
    /// Of the plan: the shard compares it.
    digest: u64,
    /// The number of the last push.
    pub(super) step: u64,
    /// Pushes that may have to be put back, with their numbers.
    pub(super) aside: VecDeque<(u64, Aside)>,
    work: Work,
}

struct Work {
    flat: Vec<f32>,
    selected: SparseVec,
    push: SparseVec,
    decoded: SparseVec,
    errors: SparseVec,
    encoder: Encoder,
    quantiser: Box<dyn Quantiser + Send>,
}

/// The gradients of a push, as the shard gets them.
#[derive(Clone)]
pub(super) enum Aside {
    Sparse(SparseVec),
    Dense(Vec<f32>),
}

impl Seat {
    pub(super) fn new(plan: &Plan, shard: usize) -> Result<Self> {
        let layout = &plan.layout.shards[shard];
        let lane = |lane: &Range<usize>| Lane::new(plan.method, lane.len()).map_err(refused);
        let lanes = layout.lanes.iter().map(lane).collect::<Result<_>>()?;
        let work = Work {
            flat: Vec::new(),
            selected: SparseVec::new(0),
            push: SparseVec::new(layout.len),
            decoded: SparseVec::new(0),
            errors: SparseVec::new(0),
            encoder: Encoder::new(),
            quantiser: plan.values.quantiser(),
        };
        Ok(Self { shard, lanes, digest: plan.digest(), step: 0, aside: VecDeque::new(), work })
    }

    /// A request without gradients.
    pub(super) fn request(&self, kind: Kind) -> Vec<u8> {
        let mut message = Vec::new();
        let clock = if kind == Kind::Fetch { self.digest } else { 0 };
        Trailer { clock, ..Trailer::new(kind, self.shard, self.step) }.end(&mut message);
        message
    }

    /// Adds gradients, which are finite, to the residuals, and makes the next push. There is a factor for the
    /// gradient of each tensor, or none.
    ///
    /// # Errors
    /// The tensor and the value or sum that is not finite: nothing counts as pushed. The gradients are taken
    /// out of the residuals again, but with momentum they stay in those of the lanes before.
    pub(super) fn push<T: AsRef<[f32]>>(
        &mut self,
        plan: &Plan,
        (gradients, factors): (&[T], &[f32]),
        rate: f32,
    ) -> std::result::Result<Vec<u8>, (usize, Compress)> {
        let layout = &plan.layout.shards[self.shard];
        let mut message = Vec::new();
        if plan.method.is_dense() {
            self.push_dense(layout, gradients, &mut message)?;
        } else {
            self.push_sparse((plan, layout), (gradients, factors), rate, &mut message)?;
        }
        self.step += 1;
        let rate = if plan.method.is_scaled() { 1.0 } else { rate };
        Trailer { rate, ..Trailer::new(Kind::Push, self.shard, self.step) }.end(&mut message);
        Ok(message)
    }

    fn push_dense<T: AsRef<[f32]>>(
        &mut self,
        layout: &ShardLayout,
        gradients: &[T],
        message: &mut Vec<u8>,
    ) -> std::result::Result<(), (usize, Compress)> {
        let flat = &mut self.work.flat;
        flat.resize(layout.len, 0.0);
        layout.gather(gradients, flat);
        let mut sums = vec![0.0; layout.len];
        for (lane, range) in self.lanes.iter().zip(&layout.lanes) {
            let summed = lane.sum_dense(&flat[range.clone()], &mut sums[range.clone()]);
            summed.map_err(|error| (tensor_of(layout, range.start, &error), error))?;
        }
        // Only now: a sum that is not finite takes nothing.
        self.lanes.iter_mut().for_each(Lane::forget_dense);
        write_dense(&sums, message);
        self.aside.push_back((self.step + 1, Aside::Dense(sums)));
        Ok(())
    }

    fn push_sparse<T: AsRef<[f32]>>(
        &mut self,
        (plan, layout): (&Plan, &ShardLayout),
        (gradients, factors): (&[T], &[f32]),
        rate: f32,
        message: &mut Vec<u8>,
    ) -> std::result::Result<(), (usize, Compress)> {
        self.select(layout, (gradients, factors), rate)?;
        let work = &mut self.work;
        let encoded = work.encoder.encode(work.push.view(), plan.codec, &mut *work.quantiser, message);
        let encoded = encoded.map_err(|error| (tensor_of(layout, 0, &error), error));
        let kept =
            encoded.and_then(|()| if plan.values.is_exact() { Ok(()) } else { self.round(layout, message) });
        if kept.is_err() {
            self.give_up(layout, gradients, self.lanes.len());
            return kept;
        }
        self.aside.push_back((self.step + 1, Aside::Sparse(self.work.push.clone())));
        Ok(())
    }

    /// Adds gradients to the residuals, and moves the largest entries of each lane into the push.
    fn select<T: AsRef<[f32]>>(
        &mut self,
        layout: &ShardLayout,
        (gradients, factors): (&[T], &[f32]),
        rate: f32,
    ) -> std::result::Result<(), (usize, Compress)> {
        self.work.push.reset(layout.len);
        for (number, range) in layout.lanes.iter().enumerate() {
            let work = &mut self.work;
            let gradient = layout.scaled(range, (gradients, factors), &mut work.flat);
            if let Err(error) = self.lanes[number].compress(gradient, rate, &mut work.selected) {
                self.give_up(layout, gradients, number);
                return Err((tensor_of(layout, range.start, &error), error));
            }
            for (index, value) in work.selected.iter() {
                work.push.push(index + range.start as u32, value);
            }
        }
        Ok(())
    }

    /// Makes the push what the shard gets of it, and keeps what rounding has taken away.
    fn round(&mut self, layout: &ShardLayout, message: &[u8]) -> std::result::Result<(), (usize, Compress)> {
        let work = &mut self.work;
        let decoded = decode(message, layout.len, work.push.len(), &mut work.decoded);
        decoded.map_err(|error| (tensor_of(layout, 0, &error), error))?;
        for (lane, range) in self.lanes.iter_mut().zip(&layout.lanes) {
            differences(work.push.view(), work.decoded.view(), range.clone(), &mut work.errors);
            let kept = lane.keep_error(work.errors.view());
            kept.map_err(|error| (tensor_of(layout, range.start, &error), error))?;
        }
        std::mem::swap(&mut work.push, &mut work.decoded);
        Ok(())
    }

    /// Puts the push back, and takes the gradients of the first lanes out again.
    fn give_up<T: AsRef<[f32]>>(&mut self, layout: &ShardLayout, gradients: &[T], lanes: usize) {
        let push = Aside::Sparse(std::mem::replace(&mut self.work.push, SparseVec::new(layout.len)));
        // It succeeds: what is put back was there before.
        let _ = put_back(&mut self.lanes, layout, &push, &mut self.work.selected);
        withdraw(&mut self.lanes[..lanes], layout, gradients, &mut self.work.flat);
    }

    /// Takes the last push back, which was not sent, with its gradients.
    pub(super) fn undo<T: AsRef<[f32]>>(&mut self, plan: &Plan, gradients: &[T]) {
        let layout = &plan.layout.shards[self.shard];
        // Both succeed: what is put back was there before.
        let _ = self.resume(plan, self.step - 1);
        withdraw(&mut self.lanes, layout, gradients, &mut self.work.flat);
    }

    /// Takes a reply, [split](Trailer::split), and adds what it holds to the worker's parameters, if they are
    /// given.
    ///
    /// # Errors
    /// What is wrong with the reply, or why the shard has refused the request. Nothing has changed then.
    pub(super) fn take<T: AsMut<[f32]>>(
        &mut self,
        plan: &Plan,
        (payload, trailer): (&[u8], &Trailer),
        parameters: Option<&mut [T]>,
    ) -> std::result::Result<(), String> {
        let layout = &plan.layout.shards[self.shard];
        let parameters = parameters.into_iter();
        if trailer.step > MOST_STEPS {
            return Err(format!("a reply to step {}, which no worker has", trailer.step));
        }
        if trailer.shard as usize != self.shard {
            return Err(format!("a reply of shard {}, expected shard {}", trailer.shard, self.shard));
        }
        match trailer.kind {
            Kind::Model => {
                read_dense(payload, &mut self.work.flat, layout.len)?;
                let flat = &self.work.flat;
                for parameters in parameters {
                    layout.for_pieces(parameters, |at, piece| piece.copy_from_slice(&flat[at]));
                }
            }
            Kind::Answer => {
                let limit = plan.answer_limits(self.shard).sum();
                let decoded = decode(payload, layout.len, limit, &mut self.work.decoded);
                decoded.map_err(|error| error.to_string())?;
                let answer = self.work.decoded.view();
                for parameters in parameters {
                    layout.for_pieces(parameters, |at, piece| {
                        for (index, value) in answer.within(at.clone()).iter() {
                            piece[index as usize - at.start] += value;
                        }
                    });
                }
            }
            Kind::Refused => return Err(String::from_utf8_lossy(payload).into_owned()),
            _ => return Err("a request, expected a reply".into()),
        }
        Ok(())
    }

    /// Forgets the pushes that are safe at the shard.
    pub(super) fn settle(&mut self, plan: &Plan, trailer: &Trailer) {
        let safe = if plan.keeps_pushes { trailer.saved } else { trailer.step };
        self.aside.retain(|(step, _)| *step > safe);
    }

    /// The pushes after `applied` that this worker does not keep any more.
    pub(super) fn missing(&self, applied: u64) -> Option<RangeInclusive<u64>> {
        let kept = self.aside.iter().map(|(step, _)| *step).find(|step| *step > applied);
        let last = kept.map_or(self.step, |kept| kept - 1);
        (applied < last).then(|| applied + 1..=last)
    }

    /// Puts back a push that no shard has applied.
    pub(super) fn put_back(&mut self, plan: &Plan, push: &Aside) -> std::result::Result<(), Compress> {
        put_back(&mut self.lanes, &plan.layout.shards[self.shard], push, &mut self.work.selected)
    }

    /// Puts back the pushes that the shard has not applied, and goes on from the last one that it has. For a
    /// shard that was started again, and for a push that it has refused.
    pub(super) fn resume(&mut self, plan: &Plan, applied: u64) -> std::result::Result<(), Compress> {
        if let Some(missing) = self.missing(applied).filter(|_| plan.keeps_pushes) {
            tracing::warn!(
                "shard {} has applied push {applied} last, and pushes {missing:?} are not kept: they are \
                 lost. Confirm a saved state only once it can't be lost",
                self.shard
            );
        }
        while self.aside.back().is_some_and(|(step, _)| *step > applied) {
            if let Some((_, push)) = self.aside.pop_back() {
                self.put_back(plan, &push)?;
            }
        }
        self.step = applied;
        Ok(())
    }
}

/// The tensor whose value is not finite, in a part of a shard that begins there.
fn tensor_of(layout: &ShardLayout, start: usize, error: &Compress) -> usize {
    let index = if let Compress::NonFinite { index, .. } = error { *index } else { 0 };
    layout.tensor_at(start + index)
}

/// Puts entries of a shard back into its lanes.
fn put_back(
    lanes: &mut [Lane],
    layout: &ShardLayout,
    push: &Aside,
    work: &mut SparseVec,
) -> std::result::Result<(), Compress> {
    for (lane, range) in lanes.iter_mut().zip(&layout.lanes) {
        match push {
            Aside::Dense(values) => lane.put_back_dense(&values[range.clone()])?,
            Aside::Sparse(entries) => {
                work.reset(range.len());
                for (index, value) in entries.view().within(range.clone()).iter() {
                    work.push(index - range.start as u32, value);
                }
                lane.put_back(work)?;
            }
        }
    }
    Ok(())
}

/// Takes gradients out of lanes into which everything was put back.
fn withdraw<T: AsRef<[f32]>>(lanes: &mut [Lane], layout: &ShardLayout, gradients: &[T], flat: &mut Vec<f32>) {
    for (lane, range) in lanes.iter_mut().zip(&layout.lanes) {
        lane.withdraw(layout.gradient(range, gradients, flat));
    }
}

/// A state that can't be made.
pub(super) fn refused(error: Compress) -> Error {
    match error {
        Compress::Memory { bytes } => Error::Memory { what: "a residual".into(), bytes },
        Compress::OutOfRange { what, value, expected } => {
            Error::Server { parameter: what, found: value.to_string(), expected }
        }
        other => Error::State(other),
    }
}
