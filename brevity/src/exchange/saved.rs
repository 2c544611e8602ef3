//! Saves and loads an exchange, so that training continues after a restart as if it had not stopped.
//!
//! The file has two saved states in sequence (see [`brevity_compress::state`]). The first is the plan: it
//! says which rank and which tensors the state belongs to. The second is the number of steps in 8 bytes, and
//! what the tensors' buckets keep. The plan has the rank in 8 bytes, then 128 bytes for each tensor: its
//! description, cut to 120 bytes, and a digest of the whole description.

use std::io::{Read, Write};

use brevity_collectives::{Description, Operation};
use brevity_compress::state::{self, Fault, Reader, State, Writer};

use super::GradientExchange;
use super::parts::{Parts, kept_texts};
use super::post_momentum::PostMomentum;
use crate::error::Result;

/// How many bytes of a tensor's description are stored as text.
const TEXT_BYTES: usize = 120;

impl GradientExchange {
    /// Writes everything that this rank needs after a restart: the residuals of all tensors, gradients kept
    /// after a failure, the warm start of low-rank tensors, the momentum of signum tensors, momenta after
    /// aggregation, the number of steps, and the thresholds and the number of the step of sparse tensors that
    /// have these. Each rank saves its own state, all after the same step. The exchange does not change.
    ///
    /// Cost: 4 bytes an element, for dense tensors too, 8 with momentum correction or momentum after
    /// aggregation, at most 32 more for a sparse tensor or one with the policy `auto`, and one
    /// copy of that in memory.
    ///
    /// ```
    /// use brevity::{GradientExchange, Group, Policy};
    ///
    /// # fn main() -> brevity::Result<()> {
    /// let group = Group::solo();
    /// let build = || GradientExchange::builder(&group).tensor("weight", [8, 4], Policy::topk(0.25)).build();
    /// let mut exchange = build()?;
    /// exchange.average(&mut [vec![1.0f32; 32]])?;
    /// let mut checkpoint = Vec::new();
    /// exchange.save(&mut checkpoint)?;
    ///
    /// let mut restarted = build()?;
    /// restarted.load(&mut &checkpoint[..])?;
    /// assert_eq!(restarted.residual("weight"), exchange.residual("weight"));
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`Error::State`](crate::Error::State) if writing fails, and without memory for the copy.
    pub fn save(&self, to: &mut impl Write) -> Result<()> {
        self.check_settled()?;
        state::save(&self.plan(), to)?;
        Ok(state::save(&self.parts, to)?)
    }

    /// The number of bytes that [`save`](Self::save) writes: always the same for an exchange.
    #[must_use]
    pub fn saved_bytes(&self) -> usize {
        state::saved_bytes(&self.plan()) + self.parts.saved_bytes
    }

    /// Loads what [`save`](Self::save) wrote on this rank for an exchange with the same tensors in the same
    /// order. All later results have the same bits as without the restart; only values of
    /// [`oktopk`](crate::Policy::oktopk) that are rounded may be so by other ranks. Densities, put-back
    /// rules, formats of values, fixed thresholds, scopes of thresholds, dense steps and factors of momentum
    /// may differ from the saved ones, and so may what was [chosen](Self::choice) for a tensor: what is kept
    /// fits all of them. Reads no byte beyond the state.
    ///
    /// Either all ranks load what was saved after the same step, or none does. With tensors of low rank, by
    /// Ok-Topk or at random places, a rank that has not loaded is found out in the next step. To continue
    /// together with ranks that start anew, call [`rejoin`](Self::rejoin) after loading: it keeps the
    /// residuals, and drops the warm start, momenta after aggregation, thresholds and the number of the step.
    ///
    /// # Errors
    /// [`Error::State`](crate::Error::State) if the state can't be read, is cut off or damaged, or belongs to
    /// another rank or other tensors. Nothing has changed then, with one exception: after an error that says
    /// that the state is impossible or that a value is not finite, drop the exchange. Damage can't cause that
    /// error.
    pub fn load(&mut self, from: &mut impl Read) -> Result<()> {
        self.load_of(self.group.rank(), from)
    }

    /// Like [`load`](Self::load), but for the state that rank `rank` saved. Use it in a job with another
    /// number of ranks or with other rank numbers. Unsent gradients may go into any rank, once: if exactly
    /// one rank loads each saved state, or [takes it over](Self::take_over), nothing is lost. The residuals
    /// in a state that no rank takes are lost. A momentum of signum may be that of any rank, of several too.
    ///
    /// So where there are `Q` ranks now and `P` states, rank `q` loads state `q` and takes over the states
    /// `q + Q`, `q + 2 Q` and so on. With more ranks than states, those without one get what all have alike
    /// by [`share_state`](Self::share_state).
    ///
    /// # Errors
    /// Like [`load`](Self::load).
    pub fn load_of(&mut self, rank: u32, from: &mut impl Read) -> Result<()> {
        self.check_settled()?;
        state::load(&mut self.plan_of(rank), from)?;
        state::load(&mut self.parts, from)?;
        self.parts.describe_anew();
        Ok(())
    }

    fn plan(&self) -> Plan {
        self.plan_of(self.group.rank())
    }

    /// What a state belongs to that rank `rank` has saved.
    pub(super) fn plan_of(&self, rank: u32) -> Plan {
        let Parts { tensors, buckets, .. } = &self.parts;
        Plan { rank, texts: kept_texts(tensors, buckets).collect() }
    }
}

/// What the state belongs to. It is compared, never changed.
pub(super) struct Plan {
    rank: u32,
    texts: Vec<String>,
}

impl State for Plan {
    fn kind(&self) -> [u8; 4] {
        *b"plan"
    }

    fn shape(&self) -> Vec<u64> {
        vec![self.texts.len() as u64]
    }

    fn write_contents(&self, contents: &mut Writer) {
        contents.u64(self.rank.into());
        for text in &self.texts {
            contents.bytes(&cut(text));
            contents.u64(digest(text));
        }
    }

    fn read_contents(&mut self, contents: &mut Reader<'_>) -> Result<(), brevity_compress::Error> {
        let rank = contents.u64()?;
        if rank != u64::from(self.rank) {
            let of = |rank: u64| format!("the state of rank {rank}");
            return Err(Fault::Part { found: of(rank), expected: of(self.rank.into()) }.into());
        }
        for text in &self.texts {
            let (found, sum) = (contents.bytes(TEXT_BYTES)?, contents.u64()?);
            if found != cut(text) || sum != digest(text) {
                let found = String::from_utf8_lossy(found).trim_end_matches('\0').to_owned();
                return Err(Fault::Part { found, expected: text.clone() }.into());
            }
        }
        Ok(())
    }
}

/// The first bytes of a text, padded with zeros.
fn cut(text: &str) -> [u8; TEXT_BYTES] {
    let mut bytes = [0; TEXT_BYTES];
    bytes.iter_mut().zip(text.bytes()).for_each(|(to, from)| *to = from);
    bytes
}

fn digest(text: &str) -> u64 {
    Description::of_plan(Operation::EXCHANGE, text.as_bytes()).count
}

/// The number of steps, and what is kept from step to step: dense, quantised and signum tensors in the
/// builder's order, then the matrices by bucket, then sparse tensors in the builder's order, then tensors
/// whose way was chosen, then momenta after aggregation.
impl State for Parts {
    fn kind(&self) -> [u8; 4] {
        *b"exc2"
    }

    fn shape(&self) -> Vec<u64> {
        vec![self.tensors.iter().map(|tensor| tensor.count as u64).sum()]
    }

    fn write_contents(&self, contents: &mut Writer) {
        contents.u64(self.course.steps);
        let (buckets, tensors) = (&self.buckets, &self.tensors);
        let given = || (0..tensors.len()).filter(|tensor| !tensors[*tensor].fits_every_choice());
        given().for_each(|tensor| buckets.iter().for_each(|bucket| bucket.write_whole(tensor, contents)));
        buckets.iter().for_each(|bucket| bucket.write_matrices(contents));
        given().for_each(|tensor| buckets.iter().for_each(|bucket| bucket.write_sparse(tensor, contents)));
        let chosen = (0..tensors.len()).filter(|tensor| tensors[*tensor].fits_every_choice());
        chosen.for_each(|tensor| buckets.iter().for_each(|bucket| bucket.write_chosen(tensor, contents)));
        let momenta = self.tensors.iter().filter_map(|tensor| tensor.momentum.as_ref());
        momenta.for_each(|momentum| momentum.write_state(contents));
    }

    fn read_contents(&mut self, contents: &mut Reader<'_>) -> Result<(), brevity_compress::Error> {
        self.course.steps = contents.u64()?;
        // Before thresholds are read: they begin anew with another density.
        self.follow_course();
        let Self { tensors, buckets, .. } = self;
        let given = || (0..tensors.len()).filter(|tensor| !tensors[*tensor].fits_every_choice());
        given().try_for_each(|tensor| {
            buckets.iter_mut().try_for_each(|bucket| bucket.read_whole(tensor, contents))
        })?;
        buckets.iter_mut().try_for_each(|bucket| bucket.read_matrices(contents))?;
        given().try_for_each(|tensor| {
            buckets.iter_mut().try_for_each(|bucket| bucket.read_sparse(tensor, contents))
        })?;
        let mut chosen = (0..tensors.len()).filter(|tensor| tensors[*tensor].fits_every_choice());
        chosen.try_for_each(|tensor| {
            buckets.iter_mut().try_for_each(|bucket| bucket.read_chosen(tensor, contents))
        })?;
        let mut momenta = self.tensors.iter_mut().filter_map(|tensor| tensor.momentum.as_mut());
        momenta.try_for_each(|momentum: &mut PostMomentum| momentum.read_state(contents))
    }
}
