//! What all ranks of a server have built alike.

use std::time::Duration;

use brevity_collectives::{Description, Operation};
use brevity_compress::Density;
use brevity_compress::codec::{Choice, HEADER_BYTES, IndexCodec};

use super::layout::{Layout, Roles};
use super::method::{Method, Rule, Values};
use super::shard::REASON_BYTES;
use super::trailer::TRAILER_BYTES;
use crate::error::{Error, Result};

/// What indices may take in bytes beyond 4 for each: packed ones have a width for each block.
const INDEX_SLACK: usize = 1024;

pub(super) struct Plan {
    pub(super) layout: Layout,
    pub(super) roles: Roles,
    pub(super) method: Method,
    pub(super) rule: Rule,
    pub(super) values: Values,
    pub(super) codec: Choice,
    /// The share of entries of an answer; `None` for the whole shard.
    pub(super) secondary: Option<Density>,
    pub(super) staleness: Option<u64>,
    /// Whether workers keep their pushes until these are in a saved state.
    pub(super) keeps_pushes: bool,
    /// How long a worker with a bound on staleness waits for one that is not heard of.
    pub(super) patience: Duration,
    /// On a simulated network: what a shard's work costs.
    pub(super) charge: super::Charge,
}

impl Plan {
    /// The most entries of a push to a shard. Pushes may have up to the whole shard while workers change
    /// their density.
    pub(super) fn push_limit(&self, shard: usize) -> usize {
        self.layout.shards[shard].len
    }

    /// The longest request to a shard, in bytes.
    pub(super) fn longest_request(&self, shard: usize) -> usize {
        self.longest_sparse(shard, self.layout.shards[shard].len) + TRAILER_BYTES
    }

    /// The longest reply of a shard that is the whole model, in bytes.
    pub(super) fn longest_model(&self, shard: usize) -> usize {
        (4 * self.layout.shards[shard].len).max(REASON_BYTES) + TRAILER_BYTES
    }

    /// The longest answer of a shard, in bytes.
    pub(super) fn longest_answer(&self, shard: usize) -> usize {
        if self.secondary.is_none() {
            return self.longest_model(shard);
        }
        let entries = self.answer_limits(shard).sum();
        self.longest_sparse(shard, entries).max(REASON_BYTES) + TRAILER_BYTES
    }

    /// The longest message of so many entries of a shard, or dense values of a whole shard, in bytes. Values
    /// may take more than 4 bytes each: those in columns have a mean for each column, however few there are.
    fn longest_sparse(&self, shard: usize, entries: usize) -> usize {
        let is_bitmap = self.codec == Choice::Only(IndexCodec::Bitmap);
        // However few entries there are, it has a bit for each element.
        let bitmap = if is_bitmap { self.layout.shards[shard].len / 8 } else { 0 };
        let indices = bitmap.max(4 * entries) + INDEX_SLACK;
        HEADER_BYTES.saturating_add(indices).saturating_add(self.values.most_bytes(entries))
    }

    /// The most entries of an answer, for each lane of a shard.
    pub(super) fn answer_limits(&self, shard: usize) -> impl Iterator<Item = usize> {
        let lanes = self.layout.shards[shard].lanes.iter();
        lanes.map(|lane| self.secondary.map_or(0, |density| density.entries(lane.len())))
    }

    /// What must be equal on all ranks.
    pub(super) fn describe(&self) -> Description {
        let mut text = self.lines().collect::<Vec<_>>().join("\n");
        text.push_str(&format!("{:?}", (&self.roles.workers, &self.roles.servers)));
        Description::of_plan(Operation::SERVER, text.as_bytes())
    }

    /// The number by which a shard knows a worker that has built the same server.
    pub(super) fn digest(&self) -> u64 {
        self.describe().count
    }

    /// What a worker hears that has built another one. The longest part last: the end may be cut off.
    pub(super) fn refuses_others(&self) -> String {
        let Layout { tensors, total, .. } = &self.layout;
        let settings = self.settings();
        format!(
            "a worker of another server: build equal ones. Here {} tensors, {total} elements, {settings}",
            tensors.len()
        )
    }

    /// The same in words.
    pub(super) fn lines(&self) -> impl Iterator<Item = String> {
        let tensors = self.layout.tensors.iter();
        let tensors = tensors.map(|tensor| format!("tensor {:?} of shape {:?}", tensor.name, tensor.shape));
        tensors.chain([self.settings()])
    }

    /// All but the tensors.
    pub(super) fn settings(&self) -> String {
        format!(
            "{} workers, {} servers, {:?}, {:?}, values {:?}, codec {:?}, secondary density {:?}, \
             staleness {:?}, {} lanes, {}",
            self.roles.workers.len(),
            self.roles.servers.len(),
            self.method,
            self.rule,
            self.values,
            self.codec,
            self.secondary.map(Density::share),
            self.staleness,
            self.layout.shards.iter().map(|shard| shard.lanes.len()).sum::<usize>(),
            if self.keeps_pushes { "pushes kept until they are saved" } else { "pushes not kept" },
        )
    }

    /// Zeros, for which there may be no memory.
    pub(super) fn zeros(&self, len: usize) -> Result<Vec<f32>> {
        let mut zeros = Vec::new();
        let lacking = |_| Error::Memory { what: "a shard".into(), bytes: 4 * len };
        zeros.try_reserve_exact(len).map_err(lacking)?;
        zeros.resize(len, 0.0);
        Ok(zeros)
    }
}
