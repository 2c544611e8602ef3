//! What all ranks must have in common to join one job.

use super::proof::{Opening, Party};
use super::wire::{Subject, Verdict};

/// What all ranks must have in common.
#[derive(Clone, Copy)]
pub(super) struct Terms<'a> {
    wire_version: u32,
    job: &'a str,
    world_size: u32,
}

impl<'a> From<&'a Party> for Terms<'a> {
    fn from(party: &'a Party) -> Self {
        Self { wire_version: party.wire_version, job: &party.job, world_size: party.world_size }
    }
}

impl<'a> From<&'a Opening> for Terms<'a> {
    fn from(opening: &'a Opening) -> Self {
        Self { wire_version: opening.wire_version, job: &opening.job, world_size: opening.world_size }
    }
}

/// What `rank` has otherwise than rank 0, if anything.
pub(super) fn disagreement(rank: u32, found: Terms<'_>, expected: Terms<'_>) -> Option<Verdict> {
    let differences = [
        (Subject::WireVersion, found.wire_version.to_string(), expected.wire_version.to_string()),
        (Subject::Job, format!("{:?}", found.job), format!("{:?}", expected.job)),
        (Subject::WorldSize, found.world_size.to_string(), expected.world_size.to_string()),
    ];
    let difference = differences.into_iter().find(|(_, found, expected)| found != expected);
    difference.map(|(subject, found, expected)| Verdict::Disagreement { subject, rank, found, expected })
}
