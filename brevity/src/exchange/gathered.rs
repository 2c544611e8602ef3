//! Tensors that each rank writes for itself, and whose messages all ranks gather: best rank r, Spectral
//! Atomo, and signs with a norm. A message does not shrink on the way, so a rank receives as many as there
//! are others.

use std::mem;
use std::ops::Range;

use brevity_collectives::dense::all_gather;
use brevity_collectives::{Call, Chunk, Description, Error, Operation, Result};
use brevity_compress::feedback::Gradient;
use brevity_compress::state::{Reader, Writer};
use brevity_compress::{Error as Compress, in_standard_float_mode};

use super::Ending;
use super::encoding::{Draw, Encoding, Scratch, Shape};
use super::gradient::GradientMut;
use super::participants::Shares;
use super::pending::Pending;
use super::room::Lacking;
use super::taking::Taking;
use super::unbiased::from_step;

/// Tensors whose messages travel together.
pub(super) struct GatheredBucket {
    parts: Vec<Part>,
    /// The exchange's seed.
    seed: u64,
    /// This rank, and how many there are.
    rank: u32,
    /// The steps that were done: each has other random numbers.
    step: u64,
    /// The step that was loaded.
    origin: u64,
    /// What this rank sends.
    own: Vec<u32>,
    /// What all ranks have sent, in order.
    all: Vec<u32>,
    scratch: Scratch,
}

struct Part {
    tensor: usize,
    encoding: Encoding,
    /// Its words in a message.
    range: Range<usize>,
    pending: Pending,
}

impl GatheredBucket {
    pub(super) fn new(seed: u64, rank: u32) -> Self {
        let (own, all, scratch) = (Vec::new(), Vec::new(), Scratch::default());
        Self { parts: Vec::new(), seed, rank, step: 0, origin: 0, own, all, scratch }
    }

    pub(super) fn add(&mut self, tensor: usize, encoding: Encoding) -> std::result::Result<(), Lacking> {
        let start = self.words();
        let range = start..start.saturating_add(encoding.words());
        self.parts.push(Part { tensor, encoding, range, pending: Pending::new(encoding.count())? });
        Ok(())
    }

    /// Makes room for the messages of all ranks.
    pub(super) fn allocate(&mut self, world_size: u32) -> std::result::Result<(), Lacking> {
        let words = self.words();
        let all = words.saturating_mul(world_size as usize);
        let lacking = |_| all.saturating_mul(4);
        self.own.try_reserve_exact(words).map_err(lacking)?;
        self.own.resize(words, 0);
        self.all.try_reserve_exact(all).map_err(lacking)
    }

    fn words(&self) -> usize {
        self.parts.last().map_or(0, |part| part.range.end)
    }

    /// Goes on as another rank, and draws from the seed again.
    pub(super) fn rejoin(&mut self, rank: u32) {
        (self.rank, self.step, self.origin) = (rank, 0, 0);
    }

    pub(super) fn tensors(&self) -> impl Iterator<Item = usize> {
        self.parts.iter().map(|part| part.tensor)
    }

    fn part(&self, tensor: usize) -> Option<&Part> {
        self.parts.iter().find(|part| part.tensor == tensor)
    }

    /// Adds the gradient of a tensor of the bucket and writes it. Returns whether all that comes of it is
    /// finite; if not, nothing is added.
    pub(super) fn accumulate(&mut self, tensor: usize, gradient: Gradient<'_>) -> bool {
        let Self { parts, own, seed, rank, step, .. } = self;
        let Some(part) = parts.iter_mut().find(|part| part.tensor == tensor) else { return true };
        let message = &mut own[part.range.clone()];
        // The ranks' samples are independent.
        let (seed, stream) = (seed.wrapping_add(tensor as u64), u64::from(*rank) << 32 ^ *step);
        let is_finite = part.pending.add(gradient)
            && part.encoding.encode(part.pending.values(), Draw { seed, stream }, message);
        if !is_finite {
            message.fill(0);
            part.pending.withdraw(gradient);
        }
        is_finite
    }

    /// The texts of the tensors say how they are written.
    pub(super) fn describe(&self) -> Description {
        let plan = [self.words() as u64, self.seed, self.origin].map(u64::to_le_bytes);
        Description::of_plan(Operation::ALL_GATHER, plan.as_flattened())
    }

    pub(super) async fn exchange(&mut self, call: &Call<'_, '_>, poisoned: bool) -> Result<()> {
        let (words, rank) = (self.words(), call.rank() as usize);
        let mut all = mem::take(&mut self.all);
        all.clear();
        all.resize(words * call.world_size() as usize, 0);
        if !poisoned {
            // The only copy: gathering is in place.
            all[words * rank..words * (rank + 1)].copy_from_slice(&self.own);
        }
        self.all = all_gather(call, Chunk::from(all)).await?.into_vec();
        call.check_poison()?;
        // All ranks have the same bits and so take the same branch.
        let overflows = |part: &&Part| {
            let messages = self.all.chunks_exact(words);
            let most = messages.map(|message| part.encoding.most(&message[part.range.clone()])).sum::<f64>();
            // Also where it is no number.
            !matches!(most.partial_cmp(&f64::from(f32::MAX)), Some(order) if order.is_le())
        };
        match in_standard_float_mode(|| self.parts.iter().find(overflows)) {
            Some(part) => Err(Error::Overflow { tensor: part.tensor as u32 }),
            None => Ok(()),
        }
    }

    pub(super) fn finish(&mut self, ending: Ending, gradients: &mut [GradientMut<'_>], shares: Shares) {
        let words = self.words();
        let Self { parts, own, all, scratch, .. } = self;
        for part in parts {
            match ending {
                Ending::Done => {
                    let messages = all.chunks_exact(words.max(1));
                    let messages: Vec<&[u32]> =
                        messages.map(|message| &message[part.range.clone()]).collect();
                    gradients[part.tensor].write_by(|average| {
                        part.encoding.sum(&messages, average, scratch);
                        average.iter_mut().for_each(|value| *value = shares.average(*value));
                    });
                    part.end(&own[part.range.clone()], scratch);
                }
                Ending::Failed => part.pending.keep(),
                Ending::Poisoned => part.pending.withdraw(gradients[part.tensor].read()),
            }
        }
        if let Ending::Done = ending {
            self.step = self.step.wrapping_add(1);
        }
    }

    /// How a tensor of the bucket travels.
    pub(super) fn travels(&self, tensor: usize) -> Option<String> {
        let of = |what: &str, Shape { rows, cols, rank }| format!("{what} rank {rank} of {rows} x {cols}");
        Some(match self.part(tensor)?.encoding {
            Encoding::Best(shape) => of("best", shape),
            Encoding::Atomo(shape) => of("Spectral Atomo,", shape) + &from_step(self.origin),
            Encoding::SignNorm { .. } => "sign and norm".to_owned(),
        })
    }

    /// What is kept of a tensor of the bucket, in words.
    pub(super) fn keeps(&self, tensor: usize) -> Option<String> {
        Some(match self.part(tensor)?.encoding {
            Encoding::Best(_) => "best low rank".to_owned(),
            Encoding::Atomo(_) => "Spectral Atomo".to_owned(),
            // The same residual.
            Encoding::SignNorm { .. } => "quantised".to_owned(),
        })
    }

    pub(super) fn write_state(&self, tensor: usize, contents: &mut Writer) {
        if let Some(part) = self.part(tensor) {
            if !part.encoding.has_feedback() {
                contents.u64(self.step);
            }
            contents.f32s(part.pending.values());
        }
    }

    pub(super) fn read_state(
        &mut self,
        tensor: usize,
        contents: &mut Reader<'_>,
    ) -> std::result::Result<(), Compress> {
        let Self { parts, step, origin, .. } = self;
        let Some(part) = parts.iter_mut().find(|part| part.tensor == tensor) else { return Ok(()) };
        if !part.encoding.has_feedback() {
            // The same of all tensors.
            *step = contents.u64()?;
            *origin = *step;
        }
        part.pending.load(|values| contents.f32s(values))
    }

    /// Adds what another rank has saved of a tensor. The step stays.
    pub(super) fn take(&mut self, tensor: usize, from: &mut Taking<'_>) -> std::result::Result<(), Compress> {
        let Some(part) = self.parts.iter_mut().find(|part| part.tensor == tensor) else { return Ok(()) };
        if !part.encoding.has_feedback() {
            from.contents().u64()?;
        }
        part.pending.take(from)
    }

    pub(super) fn residual_to(&self, tensor: usize, out: &mut [f32]) {
        if let Some(part) = self.part(tensor) {
            out.copy_from_slice(part.pending.values());
        }
    }
}

impl Part {
    /// Ends a step in which `own` was delivered.
    fn end(&mut self, own: &[u32], scratch: &mut Scratch) {
        let Self { encoding, pending, .. } = self;
        if encoding.has_feedback() {
            pending.leave(|values| encoding.subtract(own, values, scratch));
        } else {
            pending.clear();
        }
    }
}
