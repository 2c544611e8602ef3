//! Status codes, and the mapping from errors of the Rust API to them.

use std::io::ErrorKind;

use brevity::Error as Facade;
use brevity::compress::Error as Compress;
use brevity::compress::state::Fault;
use brevity_collectives::Error as Collective;
use ucx_sys_wrap::Error as Transport;

/// What a call returns. Numbers never change; new ones may be added.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum brv_status {
    /// Done.
    Ok = 0,
    /// An argument is wrong.
    Argument = 1,
    /// A rank has died.
    PeerLost = 2,
    /// A rank closed the group.
    Aborted = 3,
    /// A rank did not answer, or did not join, in time.
    Timeout = 4,
    /// Ranks make different calls.
    Mismatch = 5,
    /// A rank handed in a value that is not finite.
    NonFinite = 6,
    /// The environment does not describe a job.
    Environment = 7,
    /// A peer broke the rules of the wire.
    Protocol = 8,
    /// The network or the system failed.
    Transport = 9,
    /// A defect in the library.
    Panic = 10,
    /// Memory, or the numbers for groups, are used up.
    Exhausted = 11,
}

/// The status, and the rank if the error is about one.
pub(crate) type Verdict = (brv_status, Option<u32>);

/// Maps the facade's errors.
pub(crate) fn of_facade(error: &Facade) -> Verdict {
    match error {
        Facade::NonFinite { rank, .. } => (brv_status::NonFinite, Some(*rank)),
        Facade::Overflow { .. } => (brv_status::NonFinite, None),
        Facade::Memory { .. } => (brv_status::Exhausted, None),
        Facade::State(error) if of_memory(error) => (brv_status::Exhausted, None),
        Facade::Collective(error) => of_collective(error),
        _ => (brv_status::Argument, None),
    }
}

/// Whether saving or loading has failed for want of memory.
fn of_memory(error: &Compress) -> bool {
    matches!(error, Compress::Memory { .. } | Compress::State(Fault::Io(ErrorKind::OutOfMemory)))
}

/// Maps a collective's errors.
pub(crate) fn of_collective(error: &Collective) -> Verdict {
    match error {
        Collective::PeerLost { rank } => (brv_status::PeerLost, Some(rank.0)),
        Collective::Aborted { rank } => (brv_status::Aborted, Some(rank.0)),
        // The rank is the one that has found it, not one that differs.
        Collective::Differs { .. } => (brv_status::Mismatch, None),
        Collective::Timeout { rank, .. } => (brv_status::Timeout, Some(rank.0)),
        Collective::Mismatch { rank, .. } => (brv_status::Mismatch, Some(rank.0)),
        Collective::NonFinite { rank, .. } => (brv_status::NonFinite, Some(rank.0)),
        Collective::Overflow { .. } => (brv_status::NonFinite, None),
        Collective::Payload { rank, .. } => (brv_status::Protocol, Some(rank.0)),
        Collective::TooManyGroups => (brv_status::Exhausted, None),
        Collective::Transport(error) => of_transport(error),
        _ => (brv_status::Argument, None),
    }
}

/// Maps a transport's errors.
pub(crate) fn of_transport(error: &Transport) -> Verdict {
    match error {
        Transport::PeerLost { rank } => (brv_status::PeerLost, Some(rank.0)),
        Transport::Aborted { rank } => (brv_status::Aborted, Some(rank.0)),
        Transport::Timeout { rank, .. } => (brv_status::Timeout, Some(rank.0)),
        Transport::MissingRanks { missing, .. } => (brv_status::Timeout, missing.first().map(|rank| rank.0)),
        Transport::Mismatch { rank, .. } => (brv_status::Mismatch, Some(rank.0)),
        Transport::Differs { .. } => (brv_status::Mismatch, None),
        Transport::TooLong { rank, .. }
        | Transport::Protocol { rank, .. }
        | Transport::Disagreement { rank, .. } => (brv_status::Protocol, Some(rank.0)),
        Transport::Unauthenticated { .. } => (brv_status::Protocol, None),
        Transport::Environment { .. } => (brv_status::Environment, None),
        _ => (brv_status::Transport, None),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ucx_sys_wrap::Rank;

    #[test]
    fn the_rank_concerned_survives_every_layer() {
        let lost = Transport::PeerLost { rank: Rank(3) };
        assert_eq!(
            of_facade(&Facade::Collective(Collective::Transport(lost))),
            (brv_status::PeerLost, Some(3))
        );
        let payload = Collective::Payload { rank: Rank(2), what: "7 bytes".into() };
        assert_eq!(of_collective(&payload), (brv_status::Protocol, Some(2)));
        let bad = Facade::NonFinite { rank: 1, tensor: "gradient".into() };
        assert_eq!(of_facade(&bad), (brv_status::NonFinite, Some(1)));
    }

    #[test]
    fn a_different_call_is_a_mismatch_whoever_has_found_it() {
        let rank = Rank(4);
        for error in [
            Collective::Transport(Transport::Differs { rank }),
            Collective::Differs { rank, difference: Default::default() },
        ] {
            assert_eq!(of_collective(&error), (brv_status::Mismatch, None), "{error}");
        }
    }

    #[test]
    fn what_the_caller_did_is_an_argument_error() {
        let length = Collective::Length { what: "the vector", found: 1, expected: 2 };
        assert_eq!(of_collective(&length), (brv_status::Argument, None));
    }
}
