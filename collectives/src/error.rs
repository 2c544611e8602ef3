//! Errors of collectives: what failed, with the rank and the call.

use std::time::Duration;

use ucx_sys_wrap::Rank;

use crate::description::{Description, Operation};
use crate::difference::Difference;
use crate::plan::{Algorithm, UnknownMachine, UnknownWish};

/// The result of a collective.
pub type Result<T> = std::result::Result<T, Error>;

/// Why a collective failed.
///
/// The group is closed on all ranks after [`PeerLost`](Self::PeerLost), [`Aborted`](Self::Aborted),
/// [`Timeout`](Self::Timeout), [`Mismatch`](Self::Mismatch), [`Differs`](Self::Differs),
/// [`User`](Self::User) and [`Payload`](Self::Payload), and after a [`Transport`](Self::Transport) error for
/// lack of memory or an invalid message of a peer. Unless a call states otherwise, an error leaves its inputs
/// unchanged and its output unspecified.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A rank has died or its connection is gone.
    #[error("rank {rank} is lost: its process has ended or its connection is gone")]
    PeerLost {
        /// The rank that is gone.
        rank: Rank,
    },

    /// A rank closed the group, on purpose or because an earlier call timed out.
    #[error("the group is closed: rank {rank} aborted it, or a call of rank {rank} timed out or panicked")]
    Aborted {
        /// The rank that closed it.
        rank: Rank,
    },

    /// The deadline of this call, or of a call of another rank, passed while this call waited.
    #[error(
        "{operation} (call {sequence}, round {round}) timed out after {:.3} s, while it waited for rank \
            {rank}: \
         is it alive, and does it make the same calls?",
        .after.as_secs_f64()
    )]
    Timeout {
        /// The operation.
        operation: Operation,
        /// The call's number in its group.
        sequence: u32,
        /// The round of the call.
        round: u32,
        /// The rank waited for.
        rank: Rank,
        /// How long this rank had waited in the call; less than its timeout if another rank's expired first.
        after: Duration,
    },

    /// The job has a driver already.
    #[error("this job has a driver already: drop it before making another one")]
    AlreadyDriven,

    /// A peer makes a different call.
    #[error(
        "{}: do all ranks make the same calls in the same order?",
        .difference.text().map_or_else(
            || format!("rank {rank} calls {found}, expected {expected}"),
            |text| format!("ranks make different calls: {text}"),
        )
    )]
    Mismatch {
        /// The peer.
        rank: Rank,
        /// This rank's call.
        expected: Description,
        /// The peer's call.
        found: Description,
        /// The first call that differs, if that is known.
        difference: Difference,
    },

    /// Another rank has found that ranks make different calls.
    #[error(
        "the group is closed: rank {rank} found that ranks make different calls{}: do all ranks make the \
         same calls in the same order?",
        .difference.text().map_or_else(String::new, |text| format!(": {text}"))
    )]
    Differs {
        /// The rank that found it.
        rank: Rank,
        /// The first call that differs, if that is known.
        difference: Difference,
    },

    /// A new group finds no number that is free on all its ranks.
    #[error("no group number is free on all ranks of the new group: drop groups that are not used any more")]
    TooManyGroups,

    /// The other ranks of the group go on without this one, which did not answer in time.
    #[error(
        "the other ranks of the group go on without this one, which did not answer in time: start it again"
    )]
    Excluded,

    /// The ranks have agreed on this group's successor before.
    #[error("the group was shrunk before: shrink the group that came of it")]
    HasShrunk,

    /// The ranks of the job have gone on in a group that has grown, or a majority may have.
    #[error(
        "the job goes on in the group that has grown, or may do so: use that one; without it, end this \
         process, or shrink to any number of ranks if no other goes on"
    )]
    HasGrown,

    /// Too few ranks of a closed group are left to go on.
    #[error(
        "only {left} of {of} ranks have answered, and no majority of the group goes on: wait until others \
         can be reached, or shrink to any number of ranks"
    )]
    NoMajority {
        /// The ranks that have answered.
        left: u32,
        /// The ranks of the group.
        of: u32,
    },

    /// Lost ranks could not be taken back. The group goes on as before.
    #[error("rank {rank} can't take lost ranks back: {why}")]
    NotGrown {
        /// The rank that has failed.
        rank: Rank,
        /// Why.
        why: String,
    },

    /// The group was made by the parent of this forked process, which still uses it.
    #[error(
        "the group was made before fork, in the parent process, and a child can't use it: make calls in the \
         process that has made the group"
    )]
    Forked,

    /// A rank has a value or a sum that is not finite. All ranks get this error, and nothing was applied.
    #[error("rank {rank} has a value or a sum that is not finite in tensor {tensor}: nothing was applied")]
    NonFinite {
        /// The rank that has the value.
        rank: Rank,
        /// The tensor's position in the call, from 0.
        tensor: u32,
    },

    /// A sum over all ranks is not finite. All ranks get this error, and nothing was applied.
    #[error("the sum over all ranks is not finite in tensor {tensor}: nothing was applied")]
    Overflow {
        /// The tensor's position in the call, from 0.
        tensor: u32,
    },

    /// A length does not fit the call.
    #[error("{what} has {found} elements, expected {expected}")]
    Length {
        /// The argument.
        what: &'static str,
        /// Its length.
        found: usize,
        /// The expected length.
        expected: usize,
    },

    /// A message did not come, or was not taken, before its timeout. Nothing is closed.
    ///
    /// A receive has taken no message. Of a send the receiver gets all or nothing, perhaps later.
    #[error(
        "{what}{} did not end within {:.3} s: nothing is closed",
        About(*rank, *tag),
        .after.as_secs_f64()
    )]
    MessageTimeout {
        /// What was to be done, as "a receive from".
        what: &'static str,
        /// The other rank; `None` for any.
        rank: Option<Rank>,
        /// The tag; `None` for any.
        tag: Option<u32>,
        /// How long this rank has waited.
        after: Duration,
    },

    /// A put, get or flush did not end before its timeout. Nothing is closed. A put may still reach its
    /// memory.
    #[error("{what} rank {rank} did not end within {:.3} s: nothing is closed", .after.as_secs_f64())]
    OneSidedTimeout {
        /// What was to be done, as "a put to".
        what: &'static str,
        /// The owner of the memory.
        rank: Rank,
        /// How long this rank has waited.
        after: Duration,
    },

    /// A message was given up by [`Handle::cancel`](crate::engine::Handle::cancel). Nothing is closed.
    #[error("the message was canceled by this rank")]
    Canceled,

    /// A message is longer than its receiver allows. It is taken and dropped; nothing is closed.
    #[error("rank {rank} sent {bytes} bytes with tag {tag}, expected at most {limit}: allow for more")]
    MessageTooLong {
        /// The sender.
        rank: Rank,
        /// The message's tag.
        tag: u32,
        /// Its length in bytes.
        bytes: u64,
        /// What the receiver allows, in bytes.
        limit: u64,
    },

    /// A message is no whole number of elements. It is taken and dropped; nothing is closed.
    #[error("rank {rank} sent {bytes} bytes with tag {tag}, expected a multiple of {element_bytes}")]
    MessageElements {
        /// The sender.
        rank: Rank,
        /// The message's tag.
        tag: u32,
        /// Its length in bytes.
        bytes: u64,
        /// Bytes of an element.
        element_bytes: usize,
    },

    /// A tag of a message has more than 31 bits.
    #[error("tag {tag} has more than 31 bits: use 0 to 2147483647")]
    Tag {
        /// The given tag.
        tag: u32,
    },

    /// The other rank of a message is no rank of the group.
    #[error("{rank} is no rank of a group of {world_size}")]
    NoSuchRank {
        /// The given rank.
        rank: u32,
        /// Ranks in the group.
        world_size: u32,
    },

    /// The root is no rank of the group.
    #[error("root {root} is no rank of a group of {world_size}")]
    NoSuchRoot {
        /// The given root.
        root: Rank,
        /// Ranks in the group.
        world_size: u32,
    },

    /// The algorithm that the caller has chosen can't do this.
    #[error("the {algorithm} algorithm does not fit this {operation}: choose {fitting}")]
    Algorithm {
        /// The operation.
        operation: Operation,
        /// The algorithm.
        algorithm: Algorithm,
        /// The names of those that fit.
        fitting: String,
    },

    /// A variable names no algorithm.
    #[error("{variable}: {error}")]
    Wish {
        /// The variable.
        variable: &'static str,
        /// What is wrong.
        error: UnknownWish,
    },

    /// A variable tells no machine.
    #[error("{variable}: {error}")]
    Machine {
        /// The variable.
        variable: &'static str,
        /// What is wrong.
        error: UnknownMachine,
    },

    /// The reduction is not defined for the element type.
    #[error(
        "{reduction} is not defined for {element}: {}",
        if *reduction == "average" { "sum, and divide yourself" } else { "use another reduction or type" }
    )]
    Reduction {
        /// The reduction.
        reduction: &'static str,
        /// The element type.
        element: &'static str,
    },

    /// A reduction that the program defines has failed on this rank.
    #[error("the program's reduction {name:?} failed with status {status}")]
    User {
        /// Its name.
        name: String,
        /// What it returned.
        status: i32,
    },

    /// A peer sent an invalid payload.
    #[error("rank {rank} sent {what}: do all ranks run the same version?")]
    Payload {
        /// The peer.
        rank: Rank,
        /// What was wrong.
        what: String,
    },

    /// A compressor refused its input.
    #[error(transparent)]
    Compress(#[from] brevity_compress::Error),

    /// Another error of the transport.
    #[error(transparent)]
    Transport(ucx_sys_wrap::Error),
}

/// The other rank and the tag of a message.
struct About(Option<Rank>, Option<u32>);

impl std::fmt::Display for About {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.0 {
            Some(rank) => write!(f, " rank {rank}")?,
            None => f.write_str(" any rank")?,
        }
        match self.1 {
            Some(tag) => write!(f, " with tag {tag}"),
            None => f.write_str(" with any tag"),
        }
    }
}

/// The call in which an error of the transport occurred.
pub(crate) struct CallSite<'a> {
    pub(crate) description: Description,
    pub(crate) sequence: u32,
    pub(crate) difference: &'a Difference,
}

impl Error {
    /// The error of a call that failed with a transport's error.
    pub(crate) fn at(site: &CallSite<'_>, error: ucx_sys_wrap::Error) -> Self {
        use ucx_sys_wrap::Error as Transport;
        match error {
            Transport::PeerLost { rank } => Self::PeerLost { rank },
            Transport::Aborted { rank } => Self::Aborted { rank },
            Transport::Differs { rank } => Self::Differs { rank, difference: site.difference.clone() },
            Transport::Timeout { rank, tag, waited } => Self::Timeout {
                operation: site.description.operation,
                sequence: site.sequence,
                round: tag.round(),
                rank,
                after: waited,
            },
            Transport::Mismatch { rank, expected, found } => Self::Mismatch {
                rank,
                expected: Description::decode(expected),
                found: Description::decode(found),
                difference: site.difference.clone(),
            },
            other => Self::Transport(other),
        }
    }
}
