//! Joining through an all-gather of the caller's: rank 0 hands in its identifier, the others a notice.
//!
//! A rank that can't join hands in why, so that all ranks fail instead of waiting for it.

use std::fmt::Display;

use ucx_sys_wrap::bootstrap::JobId;
use ucx_sys_wrap::{Error as Transport, Rank};

use super::Join;
use crate::error::{Error, Result};
use crate::group::Group;

/// What a rank hands in.
type Part = [u8; JobId::BYTES];

/// The first bytes of a notice. The rank's number 4, the world's size 4 and the length of a reason 1 follow,
/// and the reason, which is empty if the rank can join; integers little-endian.
const MAGIC: [u8; 8] = *b"brevity!";

const HEADER_BYTES: usize = MAGIC.len() + 9;

const PLACE: &str = "the all-gather";

const BY_JOIN: &str = "0 beside an all-gather, which others do not call: come back by join";

const ORDER: &str = "are parts in the order of ranks?";

pub(super) fn join<E: Display>(
    mut join: Join,
    all_gather: impl FnOnce(&[u8]) -> std::result::Result<Vec<Vec<u8>>, E>,
) -> Result<Group> {
    if join.identity.world_size == 1 {
        return join.join();
    }
    if join.identity.incarnation > 0 {
        let (variable, found) = ("BREVITY_INCARNATION", join.identity.incarnation.to_string());
        return Err(join.told()(Transport::Environment { variable, found, expected: BY_JOIN }));
    }
    join.choose_place(PLACE);
    let made = make_id(&join);
    let own = match &made {
        Ok(Some(made)) => made.0.to_bytes(),
        Ok(None) => notice(&join, ""),
        Err(error) => notice(&join, &error.to_string()),
    };
    let all = all_gather(&own).map_err(|error| format!("has failed: {error}"));
    // Until the end: rank 0 can join as long as its identifier is kept.
    let _made = made?;
    let wrong = |why| Error::Transport(Transport::Gather { why });
    let all = all.map_err(wrong)?;
    let id = check(&join, &own, &all).map_err(Error::Transport)?;
    join.identity.meet_by(id);
    join.join()
}

/// Rank 0's identifier, which nobody can join with again.
struct Kept(JobId);

impl Drop for Kept {
    fn drop(&mut self) {
        self.0.forget();
    }
}

/// Checks the settings, and makes the identifier on rank 0.
fn make_id(join: &Join) -> Result<Option<Kept>> {
    join.validate(true).map_err(join.told())?;
    let is_first = join.identity.rank == Rank(0);
    is_first.then(|| join.make_id().map(Kept)).transpose()
}

/// Checks the parts of all ranks, and finds the identifier in that of rank 0.
fn check(join: &Join, own: &Part, all: &[Vec<u8>]) -> ucx_sys_wrap::Result<JobId> {
    let world_size = join.identity.world_size;
    if all.len() != world_size as usize {
        let why = format!("has returned {} parts, expected {world_size}: one of every rank", all.len());
        return Err(Transport::Gather { why });
    }
    for (from, part) in Rank::all(world_size).zip(all) {
        let Ok(part) = <&Part>::try_from(&part[..]) else {
            let (length, expected) = (part.len(), JobId::BYTES);
            let why = format!("has returned {length} bytes of rank {from}, expected {expected}");
            return Err(Transport::Gather { why });
        };
        if from == join.identity.rank && part != own {
            let why = format!("has returned other bytes of rank {from} than it has handed in: {ORDER}");
            return Err(Transport::Gather { why });
        }
        check_part(world_size, from, read_notice(part))?;
    }
    JobId::from_bytes(all.first().map_or(&[], Vec::as_slice))
}

/// Rank 0 hands in an identifier, or a notice if it can't join.
fn check_part(world_size: u32, from: Rank, notice: Option<Notice>) -> ucx_sys_wrap::Result<()> {
    let why = match notice {
        None if from == Rank(0) => return Ok(()),
        None => format!("has returned something else than rank {from} has handed in"),
        Some(notice) if notice.rank != from => {
            format!("has returned what rank {} has handed in as that of rank {from}: {ORDER}", notice.rank)
        }
        Some(notice) if !notice.why.is_empty() => {
            format!("tells that rank {from} can't join: {}", notice.why.replace(char::is_control, " "))
        }
        Some(notice) if notice.world_size != world_size => {
            let (found, expected) = (notice.world_size.to_string(), world_size.to_string());
            return Err(Transport::Disagreement { what: "world size", rank: from, found, expected });
        }
        Some(_) if from == Rank(0) => "has returned no identifier of rank 0".into(),
        Some(_) => return Ok(()),
    };
    Err(Transport::Gather { why })
}

/// What a rank without an identifier hands in.
#[derive(Debug, PartialEq, Eq)]
struct Notice {
    rank: Rank,
    world_size: u32,
    /// Why it can't join; empty if it can.
    why: String,
}

fn notice(join: &Join, why: &str) -> Part {
    let mut part = [0; JobId::BYTES];
    let (head, body) = part.split_at_mut(HEADER_BYTES);
    let fits = |end: &usize| *end <= body.len() && why.is_char_boundary(*end);
    let why = &why[..(0..=why.len()).rev().find(fits).unwrap_or(0)];
    body[..why.len()].copy_from_slice(why.as_bytes());
    let numbers = [join.identity.rank.0, join.identity.world_size].map(u32::to_le_bytes).concat();
    head.copy_from_slice(&[&MAGIC[..], &numbers, &[why.len() as u8]].concat());
    part
}

/// `None` if it is none.
fn read_notice(part: &Part) -> Option<Notice> {
    let rest = part.strip_prefix(&MAGIC)?;
    let (numbers, rest) = rest.split_first_chunk::<8>()?;
    let [rank, world_size] =
        [0, 4].map(|at| u32::from_le_bytes(std::array::from_fn(|byte| numbers[at + byte])));
    let (&length, body) = rest.split_first()?;
    let why = std::str::from_utf8(body.get(..length.into())?).ok()?;
    Some(Notice { rank: Rank(rank), world_size, why: why.into() })
}
