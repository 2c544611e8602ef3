//! Status codes, and the mapping from errors of the Rust API to them.

use std::ffi::{CStr, c_char};
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
    /// A message was given up by this rank.
    Canceled = 12,
    /// A message was longer than its place, or no whole number of elements.
    Truncated = 13,
    /// A reduction of the program has failed.
    User = 14,
    /// The other ranks of the group go on without this one.
    Excluded = 15,
    /// Too few ranks are left to go on.
    NoMajority = 16,
    /// The library was built without what the call needs.
    Unsupported = 17,
    /// Not an error: not ended yet.
    Pending = 100,
}

impl brv_status {
    /// Whether something is done, or pending.
    pub(crate) fn of_done(is_done: bool) -> Self {
        if is_done { Self::Ok } else { Self::Pending }
    }

    /// Its names in C.
    const NAMES: [(Self, &CStr); 19] = [
        (Self::Ok, c"BRV_OK"),
        (Self::Argument, c"BRV_ERR_ARGUMENT"),
        (Self::PeerLost, c"BRV_ERR_PEER_LOST"),
        (Self::Aborted, c"BRV_ERR_ABORTED"),
        (Self::Timeout, c"BRV_ERR_TIMEOUT"),
        (Self::Mismatch, c"BRV_ERR_MISMATCH"),
        (Self::NonFinite, c"BRV_ERR_NON_FINITE"),
        (Self::Environment, c"BRV_ERR_ENVIRONMENT"),
        (Self::Protocol, c"BRV_ERR_PROTOCOL"),
        (Self::Transport, c"BRV_ERR_TRANSPORT"),
        (Self::Panic, c"BRV_ERR_PANIC"),
        (Self::Exhausted, c"BRV_ERR_EXHAUSTED"),
        (Self::Canceled, c"BRV_ERR_CANCELED"),
        (Self::Truncated, c"BRV_ERR_TRUNCATED"),
        (Self::User, c"BRV_ERR_USER"),
        (Self::Excluded, c"BRV_ERR_EXCLUDED"),
        (Self::NoMajority, c"BRV_ERR_NO_MAJORITY"),
        (Self::Unsupported, c"BRV_ERR_UNSUPPORTED"),
        (Self::Pending, c"BRV_PENDING"),
    ];
}

/// The name of a status. C may pass any number.
#[unsafe(no_mangle)]
pub extern "C" fn brv_status_string(status: u32) -> *const c_char {
    let mut names = brv_status::NAMES.iter();
    names.find(|(known, _)| *known as u32 == status).map_or(c"unknown status", |(_, name)| name).as_ptr()
}

/// The status, and the rank if the error is about one.
pub(crate) type Verdict = (brv_status, Option<u32>);

/// Maps the facade's errors.
pub(crate) fn of_facade(error: &Facade) -> Verdict {
    match error {
        Facade::NonFinite { rank, .. } => (brv_status::NonFinite, Some(*rank)),
        Facade::Overflow { .. } | Facade::StateOverflow { .. } => (brv_status::NonFinite, None),
        Facade::GradientNotFinite { rank, .. } => (brv_status::NonFinite, Some(*rank)),
        Facade::ServerLost { rank, .. } => (brv_status::PeerLost, Some(*rank)),
        Facade::ServerSilent { rank, .. } => (brv_status::Timeout, Some(*rank)),
        Facade::WorkersSilent { ranks, .. } => (brv_status::Timeout, ranks.first().copied()),
        Facade::Refused { rank, .. } => (brv_status::Protocol, Some(*rank)),
        Facade::Memory { .. } => (brv_status::Exhausted, None),
        Facade::Feature { .. } => (brv_status::Unsupported, None),
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
        Collective::MessageTimeout { rank, .. } => (brv_status::Timeout, rank.map(|rank| rank.0)),
        Collective::OneSidedTimeout { rank, .. } => (brv_status::Timeout, Some(rank.0)),
        Collective::Canceled => (brv_status::Canceled, None),
        Collective::MessageTooLong { rank, .. } | Collective::MessageElements { rank, .. } => {
            (brv_status::Truncated, Some(rank.0))
        }
        Collective::User { .. } => (brv_status::User, None),
        Collective::TooManyGroups => (brv_status::Exhausted, None),
        Collective::Excluded => (brv_status::Excluded, None),
        Collective::NoMajority { .. } | Collective::HasGrown => (brv_status::NoMajority, None),
        Collective::Wish { .. } | Collective::Machine { .. } => (brv_status::Environment, None),
        Collective::NotGrown { rank, .. } => (brv_status::Transport, Some(rank.0)),
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
        Transport::NotTakenBack { rank, .. } => (brv_status::Timeout, Some(rank.0)),
        Transport::Mismatch { rank, .. } => (brv_status::Mismatch, Some(rank.0)),
        Transport::Differs { .. } => (brv_status::Mismatch, None),
        Transport::TooLong { rank, .. }
        | Transport::Protocol { rank, .. }
        | Transport::Disagreement { rank, .. } => (brv_status::Protocol, Some(rank.0)),
        Transport::Unauthenticated { .. } => (brv_status::Protocol, None),
        Transport::NoSuchRegion { rank } => (brv_status::Transport, Some(rank.0)),
        Transport::Environment { .. } | Transport::Setting { .. } | Transport::JobId { .. } => {
            (brv_status::Environment, None)
        }
        Transport::Canceled => (brv_status::Canceled, None),
        // Refused by this rank, before anything is sent.
        Transport::NoSuchPeer { .. } | Transport::ForeignTag { .. } | Transport::OutOfRegion { .. } => {
            (brv_status::Argument, None)
        }
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
    fn a_missing_feature_has_a_status_of_its_own() {
        let missing = Facade::Feature { tensor: "weight".into(), policy: "atomo", feature: "svd" };
        assert_eq!(of_facade(&missing), (brv_status::Unsupported, None));
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
    fn messages_fail_apart_from_collectives() {
        let rank = Rank(5);
        let late = |rank| Collective::MessageTimeout {
            what: "a receive from",
            rank,
            tag: None,
            after: Default::default(),
        };
        let long = Collective::MessageTooLong { rank, tag: 1, bytes: 8, limit: 4 };
        let odd = Collective::MessageElements { rank, tag: 1, bytes: 7, element_bytes: 4 };
        for (error, verdict) in [
            (
                Collective::OneSidedTimeout { what: "a put to", rank, after: Default::default() },
                (brv_status::Timeout, Some(5)),
            ),
            (Collective::Transport(Transport::NoSuchRegion { rank }), (brv_status::Transport, Some(5))),
            (late(Some(rank)), (brv_status::Timeout, Some(5))),
            (late(None), (brv_status::Timeout, None)),
            (Collective::Canceled, (brv_status::Canceled, None)),
            (long, (brv_status::Truncated, Some(5))),
            (odd, (brv_status::Truncated, Some(5))),
            (Collective::Tag { tag: u32::MAX }, (brv_status::Argument, None)),
            (Collective::NoSuchRank { rank: 9, world_size: 2 }, (brv_status::Argument, None)),
        ] {
            assert_eq!(of_collective(&error), verdict, "{error}");
        }
    }

    #[test]
    fn settings_of_joining_are_the_environment_or_the_config() {
        let setting = Transport::Setting { name: "config.job", found: "x".into(), expected: "y".into() };
        let id = Transport::JobId { why: "no identifier".into() };
        for error in [setting, id] {
            assert_eq!(of_transport(&error), (brv_status::Environment, None), "{error}");
        }
        let gather = Transport::Gather { why: "has failed".into() };
        assert_eq!(of_transport(&gather), (brv_status::Transport, None));
    }

    #[test]
    fn every_status_has_a_name() {
        let name = |number| {
            // SAFETY: the names are constants.
            unsafe { CStr::from_ptr(brv_status_string(number)) }.to_str().unwrap()
        };
        for (status, text) in brv_status::NAMES {
            assert_eq!(name(status as u32), text.to_str().unwrap());
        }
        assert_eq!(name(18), "unknown status");
        assert_eq!(name(u32::MAX), "unknown status");
    }

    #[test]
    fn a_reduction_of_the_program_fails_with_a_status_of_its_own() {
        let failed = Collective::User { name: "pairs".into(), status: 3 };
        assert_eq!(of_collective(&failed), (brv_status::User, None));
    }

    #[test]
    fn what_the_caller_did_is_an_argument_error() {
        let length = Collective::Length { what: "the vector", found: 1, expected: 2 };
        assert_eq!(of_collective(&length), (brv_status::Argument, None));
    }
}
