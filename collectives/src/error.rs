//! What can go wrong in a collective, with who and where.

use std::time::Duration;

use ucx_sys_wrap::Rank;

use crate::description::{Description, Operation};

/// A collective's result.
pub type Result<T> = std::result::Result<T, Error>;

/// Why a collective failed.
///
/// After [`PeerLost`](Self::PeerLost), [`Aborted`](Self::Aborted), [`Timeout`](Self::Timeout),
/// [`Mismatch`](Self::Mismatch) and [`Payload`](Self::Payload) the group is closed on all ranks, and after
/// [`Transport`](Self::Transport) where the system has no memory for what is received or a peer has sent what
/// is no message of this call. Unless a call says otherwise, its inputs are unchanged after an error and its
/// output is unspecified.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A rank has died or its connection is gone.
    #[error("rank {rank} is lost: its process has ended or its connection is gone")]
    PeerLost {
        /// The rank that is gone.
        rank: Rank,
    },

    /// A rank closed the group, on purpose or in an earlier call for which it had waited too long.
    #[error("the group is closed: rank {rank} aborted it, or a call of rank {rank} timed out")]
    Aborted {
        /// The rank that closed it.
        rank: Rank,
    },

    /// The time of a call was over, of this one or of one of another rank, while this call waited.
    #[error(
        "{operation} (call {sequence}, round {round}) timed out after {:.3} s, while it waited for rank {rank}: \
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
        /// How long this rank had waited in the call. Less than its timeout where another rank's was over first.
        after: Duration,
    },

    /// A peer makes another call than this rank.
    #[error(
        "rank {rank} calls {found}, expected {expected}: do all ranks make the same calls in the same order?"
    )]
    Mismatch {
        /// The peer.
        rank: Rank,
        /// This rank's call.
        expected: Description,
        /// The peer's call.
        found: Description,
    },

    /// A rank has a value that is not finite, handed in or summed up; the same error on all ranks, nothing
    /// was applied.
    #[error("rank {rank} has a value or a sum that is not finite in tensor {tensor}: nothing was applied")]
    NonFinite {
        /// The rank whose value it is.
        rank: Rank,
        /// The tensor's position in the call, from 0.
        tensor: u32,
    },

    /// A sum over all ranks is not finite, on all of them alike; nothing was applied.
    #[error("the sum over all ranks is not finite in tensor {tensor}: nothing was applied")]
    Overflow {
        /// The tensor's position in the call, from 0.
        tensor: u32,
    },

    /// A length does not fit the call.
    #[error("{what} has {found} elements, expected {expected}")]
    Length {
        /// Which argument.
        what: &'static str,
        /// Its length.
        found: usize,
        /// The length that it must have.
        expected: usize,
    },

    /// The root is no rank of the group.
    #[error("root {root} is no rank of a group of {world_size}")]
    NoSuchRoot {
        /// The root that was named.
        root: Rank,
        /// Ranks in the group.
        world_size: u32,
    },

    /// The reduction is not defined for the element type.
    #[error("{reduction} is not defined for {element}: sum, and divide yourself")]
    Reduction {
        /// The reduction.
        reduction: &'static str,
        /// The element type.
        element: &'static str,
    },

    /// A peer sent a payload that is not what the call's rules allow.
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

    /// The transport failed in another way.
    #[error(transparent)]
    Transport(ucx_sys_wrap::Error),
}

/// Where a transport's error happened.
pub(crate) struct Place {
    pub(crate) description: Description,
    pub(crate) sequence: u32,
}

impl Error {
    /// A transport's error with the call that it ended.
    pub(crate) fn at(place: &Place, error: ucx_sys_wrap::Error) -> Self {
        use ucx_sys_wrap::Error as Transport;
        match error {
            Transport::PeerLost { rank } => Self::PeerLost { rank },
            Transport::Aborted { rank } => Self::Aborted { rank },
            Transport::Timeout { rank, tag, waited } => Self::Timeout {
                operation: place.description.operation,
                sequence: place.sequence,
                round: tag.round(),
                rank,
                after: waited,
            },
            Transport::Mismatch { rank, expected, found } => Self::Mismatch {
                rank,
                expected: Description::decode(expected),
                found: Description::decode(found),
            },
            other => Self::Transport(other),
        }
    }
}
