//! An exchange in bytes, to go on after a restart as if nothing had happened.
//!
//! Two saved states, one after the other (see [`brevity_compress::state`]): the plan, which says of which
//! rank and tensors this is the state, and what their lanes keep. The plan has the rank in 8 bytes and then
//! 128 for each tensor: its description, cut to 120, and a digest of the whole of it.

use std::io::{Read, Write};

use brevity_collectives::{Description, Operation};
use brevity_compress::state::{self, Fault, Reader, State, Writer};

use super::{GradientExchange, Lane, Parts, texts};
use crate::error::Result;

/// Bytes of a tensor's description that are kept as they are.
const TEXT_BYTES: usize = 120;

impl GradientExchange {
    /// Writes what this rank must find again after a restart: the residuals of all tensors, what waits after
    /// a failure, and the warm start of low-rank tensors. Each rank saves its own, all after the same step.
    /// Nothing changes.
    ///
    /// Cost: 4 bytes an element, also for dense tensors, and one copy of that in memory.
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
    /// [`Error::State`](crate::Error::State) when it can't be written.
    pub fn save(&self, to: &mut impl Write) -> Result<()> {
        state::save(&self.plan(), to)?;
        Ok(state::save(&self.parts, to)?)
    }

    /// Takes over what [`save`](Self::save) wrote on this rank for an exchange of the same tensors in the
    /// same order. What follows has the bits that it would have had without the restart. Densities and rules
    /// of putting back may be others than they were: residuals are good for all of them. Reads no byte beyond
    /// the state.
    ///
    /// All ranks must have loaded what was saved after the same step, or none: where tensors are of low rank,
    /// ranks that have not find out in the next step. To go on with ranks that start anew,
    /// [`rejoin`](Self::rejoin) after loading: that keeps the residuals, and drops the warm start.
    ///
    /// # Errors
    /// [`Error::State`](crate::Error::State) for what can't be read, was cut off or damaged, and for the
    /// state of another rank or of other tensors: nothing has changed then. After one that says that the
    /// state is impossible or that a value is not finite, which damage can't cause, drop the exchange.
    pub fn load(&mut self, from: &mut impl Read) -> Result<()> {
        self.load_of(self.group.rank(), from)
    }

    /// As [`load`](Self::load), for what rank `rank` has saved: in a job of another number of ranks, or whose
    /// ranks have other numbers now. What has not been sent yet is good on any rank, once: if each saved
    /// state is loaded by one rank nothing is lost, and the residuals of ranks whose states nobody loads are.
    ///
    /// # Errors
    /// As [`load`](Self::load).
    pub fn load_of(&mut self, rank: u32, from: &mut impl Read) -> Result<()> {
        state::load(&mut Plan { rank, ..self.plan() }, from)?;
        state::load(&mut self.parts, from)?;
        self.parts.describe_anew();
        Ok(())
    }

    fn plan(&self) -> Plan {
        let Parts { tensors, lanes, .. } = &self.parts;
        Plan { rank: self.group.rank(), texts: texts(tensors, lanes).collect() }
    }
}

/// Of what the state is. Only compared, never changed.
struct Plan {
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

/// The first bytes of a text, and zeros.
fn cut(text: &str) -> [u8; TEXT_BYTES] {
    let mut bytes = [0; TEXT_BYTES];
    bytes.iter_mut().zip(text.bytes()).for_each(|(to, from)| *to = from);
    bytes
}

fn digest(text: &str) -> u64 {
    Description::of_plan(Operation::EXCHANGE, text.as_bytes()).count
}

/// What the lanes keep from step to step.
impl State for Parts {
    fn kind(&self) -> [u8; 4] {
        *b"exch"
    }

    fn shape(&self) -> Vec<u64> {
        vec![self.tensors.iter().map(|tensor| tensor.count as u64).sum()]
    }

    fn write_contents(&self, contents: &mut Writer) {
        self.lanes.iter().for_each(|lane| match lane {
            Lane::Dense(lane) => lane.write_state(contents),
            Lane::Sparse(lane) => lane.write_state(contents),
            Lane::LowRank(lane) => lane.write_state(contents),
        });
    }

    fn read_contents(&mut self, contents: &mut Reader<'_>) -> Result<(), brevity_compress::Error> {
        self.lanes.iter_mut().try_for_each(|lane| match lane {
            Lane::Dense(lane) => lane.read_state(contents),
            Lane::Sparse(lane) => lane.read_state(contents),
            Lane::LowRank(lane) => lane.read_state(contents),
        })
    }
}
