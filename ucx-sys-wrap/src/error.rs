//! Errors of transports: misuse by the caller, faults of a peer, and faults of the system.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use crate::{Rank, Signature, Tag};

/// The result of transport calls.
pub type Result<T> = std::result::Result<T, Error>;

/// Why an operation or the set-up of a transport failed.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A peer has died or its connection is gone. Contexts with this member are closed.
    #[error("rank {rank} is lost: its process has ended or its connection is gone")]
    PeerLost {
        /// The rank that is gone.
        rank: Rank,
    },

    /// A rank closed the context on purpose.
    #[error("the group is closed: rank {rank} aborted it, or a call of rank {rank} timed out or panicked")]
    Aborted {
        /// The rank that called abort.
        rank: Rank,
    },

    /// The deadline passed before the peer answered.
    #[error("rank {rank} did not answer in time (waiting for {tag:?})")]
    Timeout {
        /// The rank waited for.
        rank: Rank,
        /// The message waited for.
        tag: Tag,
        /// How long this rank had waited in its call; zero if unknown.
        waited: Duration,
    },

    /// The peer makes a different call.
    #[error(
        "rank {rank} makes another call than this rank: do all ranks call the same operations in the same \
         order?"
    )]
    Mismatch {
        /// The peer.
        rank: Rank,
        /// This rank's call.
        expected: Signature,
        /// The peer's call.
        found: Signature,
    },

    /// Another rank has found that ranks make different calls; the context is closed.
    #[error(
        "the group is closed: rank {rank} found that ranks make different calls: do all ranks make the same \
         calls in the same order?"
    )]
    Differs {
        /// The rank that found it.
        rank: Rank,
    },

    /// The peer sent a part that is longer than the receive allows, or another number of parts.
    #[error(
        "rank {rank} sent {sent} bytes in part {part}, expected at most {capacity}: do all ranks run the \
         same version with the same sizes?"
    )]
    TooLong {
        /// The peer.
        rank: Rank,
        /// The part, from 0.
        part: usize,
        /// Bytes sent.
        sent: u64,
        /// Bytes that the receive had room for.
        capacity: usize,
    },

    /// The peer sent an invalid message.
    #[error("rank {rank} sent {what}: do all ranks run the same version?")]
    Protocol {
        /// The peer.
        rank: Rank,
        /// What was wrong, as "a frame of kind 77, expected at most 4".
        what: String,
    },

    /// The operation was canceled before it was done.
    #[error("the operation was canceled")]
    Canceled,

    /// The transport was closed by this rank.
    #[error("the transport is closed")]
    Closed,

    /// A rank outside the world, or this rank itself, was named as a peer.
    #[error("rank {rank} is no peer of rank {own} in a world of {world_size}")]
    NoSuchPeer {
        /// The rank that was named.
        rank: Rank,
        /// This rank.
        own: Rank,
        /// Ranks in the world.
        world_size: u32,
    },

    /// A tag that messages of their sender can't have: it names another source, or has a transport's kind.
    /// Nothing was sent.
    #[error("{tag:?} is no tag of messages from rank {rank}: make it with Tag::new of that rank")]
    ForeignTag {
        /// The tag.
        tag: Tag,
        /// The sender: this rank for a send, the peer for a receive.
        rank: Rank,
    },

    /// A put or get outside the peer's region.
    #[error(
        "{bytes} bytes at {offset} do not lie inside the region of rank {rank}, which has {region_bytes}"
    )]
    OutOfRegion {
        /// The region's owner.
        rank: Rank,
        /// The start of the access, in bytes.
        offset: u64,
        /// Bytes to put or get.
        bytes: u64,
        /// Bytes of the region.
        region_bytes: u64,
    },

    /// A put or get to a region that is not, or no longer, registered.
    #[error("rank {rank} has no region of this key: has it been unregistered?")]
    NoSuchRegion {
        /// The owner of the region.
        rank: Rank,
    },

    /// Some ranks did not join before the deadline.
    #[error(
        "{} did not join within {}: are all ranks started, and can they reach {master}?",
        RankList(missing),
        Seconds(*deadline)
    )]
    MissingRanks {
        /// The ranks that did not join.
        missing: Vec<Rank>,
        /// The deadline.
        deadline: Duration,
        /// Where they were expected.
        master: String,
    },

    /// The ranks disagree about something that was fixed when they joined.
    #[error("{what}: rank {rank} has {found}, expected {expected}")]
    Disagreement {
        /// The subject, as "wire version".
        what: &'static str,
        /// The rank that differs.
        rank: Rank,
        /// What it has.
        found: String,
        /// What rank 0 has.
        expected: String,
    },

    /// A connecting process did not prove that it holds the job's key.
    #[error(
        "{who} does not hold the key of this job: is the key (BREVITY_KEY or BREVITY_KEY_FILE) the same on \
         all ranks?"
    )]
    Unauthenticated {
        /// The address or rank.
        who: String,
    },

    /// An environment variable is missing or invalid.
    #[error("{variable} is {found}: expected {expected}")]
    Environment {
        /// The variable's name.
        variable: &'static str,
        /// What it holds ("not set", or the value in quotes).
        found: String,
        /// The expected value, and how to set it.
        expected: &'static str,
    },

    /// A setting that the caller has given for joining is missing or invalid.
    #[error("{name} is {found}: expected {expected}")]
    Setting {
        /// The setting's name.
        name: &'static str,
        /// What it is ("not set", or the value).
        found: String,
        /// The expected value, and how to set it.
        expected: String,
    },

    /// These bytes are no identifier of a job, or not one to join with.
    #[error("the job id is {why}")]
    JobId {
        /// What they are instead, with the remedy.
        why: String,
    },

    /// A rank has come back, and those that are left have not taken it.
    #[error(
        "rank {rank} was not taken back at {place} within {:.1} s: do the ranks that are left call grow, or \
         are they gone?",
        .deadline.as_secs_f64()
    )]
    NotTakenBack {
        /// The rank that has come back.
        rank: Rank,
        /// Where it has called.
        place: String,
        /// How long it has tried.
        deadline: Duration,
    },

    /// The caller's all-gather, through which the ranks were to learn where to meet, has failed.
    #[error("the all-gather for joining {why}")]
    Gather {
        /// What it did.
        why: String,
    },

    /// The launcher's key-value store, through which rank 0 publishes its address, can't be used.
    #[error(
        "{launcher} can't tell the ranks where to meet: {why}; without it, set BREVITY_MASTER=host:port for \
         all ranks"
    )]
    Launcher {
        /// The launcher.
        launcher: &'static str,
        /// Why.
        why: String,
    },

    /// The requested transport can't be used here.
    #[error("transport {name:?} can't be used: {why}")]
    Unavailable {
        /// The transport.
        name: &'static str,
        /// Why, with the remedy.
        why: String,
    },

    /// The operating system refused.
    #[error("{action}: {source}")]
    System {
        /// The attempted action, as "can't connect to 127.0.0.1:4000".
        action: String,
        /// The system's reason.
        source: Arc<io::Error>,
    },

    /// UCX refused.
    #[error("{call} failed: {status}")]
    Ucx {
        /// The UCX function.
        call: &'static str,
        /// UCX's status string.
        status: String,
    },
}

impl Error {
    /// A system error with the attempted action.
    pub fn system(action: impl Into<String>, source: impl Into<io::Error>) -> Self {
        Self::System { action: action.into(), source: Arc::new(source.into()) }
    }
}

/// Why a context is closed. Its members are told, so that every rank names the same cause.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Failure {
    /// The loss of this rank.
    PeerLost(Rank),
    /// This rank closed the context on purpose.
    Aborted(Rank),
    /// This rank's deadline has passed. Pending operations of all members end with [`Error::Timeout`], each
    /// naming the rank that it waits for; later ones end with [`Error::Aborted`].
    TimedOut(Rank),
    /// This rank has found that ranks make different calls.
    Differs(Rank),
}

impl Failure {
    /// The rank that is named.
    #[must_use]
    pub fn rank(self) -> Rank {
        let (Self::PeerLost(rank) | Self::Aborted(rank) | Self::TimedOut(rank) | Self::Differs(rank)) = self;
        rank
    }

    /// As a number of 64 bits, for the wire: the kind (1 to 4) above the rank.
    pub(crate) fn encode(self) -> u64 {
        let kind = match self {
            Self::PeerLost(_) => 1u64,
            Self::Aborted(_) => 2,
            Self::TimedOut(_) => 3,
            Self::Differs(_) => 4,
        };
        kind << 32 | u64::from(self.rank().0)
    }

    /// From a peer's number; `None` for one that no rank of the world sends.
    pub(crate) fn decode(bits: u64, world_size: u32) -> Option<Self> {
        let rank = Rank(bits as u32);
        let failure = match bits >> 32 {
            1 => Self::PeerLost(rank),
            2 => Self::Aborted(rank),
            3 => Self::TimedOut(rank),
            4 => Self::Differs(rank),
            _ => return None,
        };
        (rank.0 < world_size).then_some(failure)
    }
}

impl From<Failure> for Error {
    fn from(failure: Failure) -> Self {
        match failure {
            Failure::PeerLost(rank) => Self::PeerLost { rank },
            Failure::Aborted(rank) | Failure::TimedOut(rank) => Self::Aborted { rank },
            Failure::Differs(rank) => Self::Differs { rank },
        }
    }
}

struct RankList<'a>(&'a [Rank]);

/// The number of ranks that are named; the others are counted.
const MOST_NAMED: usize = 8;

impl std::fmt::Display for RankList<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(if self.0.len() == 1 { "rank " } else { "ranks " })?;
        for (position, rank) in self.0.iter().take(MOST_NAMED).enumerate() {
            if position > 0 {
                f.write_str(", ")?;
            }
            rank.fmt(f)?;
        }
        match self.0.len().saturating_sub(MOST_NAMED) {
            0 => Ok(()),
            more => write!(f, " and {more} more"),
        }
    }
}

struct Seconds(Duration);

impl std::fmt::Display for Seconds {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let seconds = self.0.as_secs_f64();
        // A measured wait is rounded.
        write!(f, "{} s", if seconds >= 1.0 { (seconds * 10.0).round() / 10.0 } else { seconds })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn missing_ranks_are_named() {
        let error = Error::MissingRanks {
            missing: vec![Rank(2), Rank(3)],
            deadline: Duration::from_millis(2500),
            master: "127.0.0.1:4000".into(),
        };
        assert_eq!(
            error.to_string(),
            "ranks 2, 3 did not join within 2.5 s: are all ranks started, and can they reach 127.0.0.1:4000?"
        );
    }

    #[test]
    fn of_many_missing_ranks_some_are_named_and_the_others_counted() {
        let text = |count| {
            let (missing, deadline) = (Rank::all(count).collect(), Duration::from_micros(59_998_700));
            Error::MissingRanks { missing, deadline, master: "there".into() }.to_string()
        };
        assert!(text(8).starts_with("ranks 0, 1, 2, 3, 4, 5, 6, 7 did not join within 60 s:"), "{}", text(8));
        let many = text(crate::MAX_WORLD_SIZE);
        assert!(many.starts_with("ranks 0, 1, 2, 3, 4, 5, 6, 7 and 1048568 more did not"), "{many:.200}");
    }
}
