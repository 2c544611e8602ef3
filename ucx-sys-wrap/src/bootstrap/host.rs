//! Which ranks are on one host, and which processes they are.

use std::collections::HashSet;
use std::os::unix::fs::MetadataExt;

use rustix::process::Pid;
use rustix::thread::{CpuSet, sched_getaffinity};
use sha2::{Digest, Sha256};

use super::identity::Identity;
use super::key::fill_random;
use crate::boot::{self, Boot};
use crate::process::{PROCESS_NAME_BYTES, PeerProcess, ProcessName};
use crate::shm::Neighbourhood;
use crate::{Rank, Result};

/// Bytes of the random name that a rank waits for its neighbours under.
pub(super) const DOOR_BYTES: usize = 16;

/// The longest `BREVITY_HOST_ID`, in bytes.
pub(super) const MAX_HOST_ID_BYTES: usize = 255;

/// Bytes that stand for what a rank has found wrong.
const FINDING_BYTES: usize = 8;

/// Bytes before the host's own name: whether memory may be shared, the user, the network's device and inode,
/// the boot, the door, the finding, the process.
const FIXED_BYTES: usize = PROCESS_AT + PROCESS_NAME_BYTES;
const PROCESS_AT: usize = 1 + 4 + 16 + 16 + DOOR_BYTES + FINDING_BYTES;

/// What a rank says of its host, for the others to compare.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Card {
    /// Whether this rank was asked to share memory; rank 0's wish counts.
    pub(super) is_wanted: bool,
    /// The host, or `None` where that can't be told.
    host: Option<Host>,
    /// Where its neighbours find it.
    pub(super) door: [u8; DOOR_BYTES],
    /// Stands for what this rank has found wrong with its key file: equal findings have equal bytes.
    finding: Option<[u8; FINDING_BYTES]>,
    /// The process, or `None` where the system does not say.
    process: Option<ProcessName>,
}

/// Ranks whose hosts are equal can share memory and find each other.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Host {
    /// Processes of another user are no neighbours.
    user: u32,
    /// The network namespace: sockets are found by name inside it.
    network: (u64, u64),
    /// The running kernel.
    boot: Boot,
    /// `BREVITY_HOST_ID`, or nothing.
    id: String,
}

impl Card {
    /// This rank's card, with a new door.
    ///
    /// # Errors
    /// When the system has no random bytes.
    pub(super) fn own(identity: &Identity) -> Result<Self> {
        let mut door = [0; DOOR_BYTES];
        fill_random(&mut door)?;
        let host = Host::own(identity.host_id.clone().unwrap_or_default());
        if host.is_none() {
            tracing::debug!("this host can't be told from others: its ranks share no memory");
        }
        let finding = identity.exposed_key.as_deref().map(digest);
        let process = ProcessName::own();
        Ok(Self { is_wanted: identity.shared_memory, host, door, finding, process })
    }

    /// The running kernel: its boot, and the name of the host.
    fn kernel(&self) -> Option<(&[u8], &str)> {
        self.host.as_ref().map(|host| (&host.boot[..], &*host.id))
    }

    /// The running kernel, and the process there.
    fn process(&self) -> Option<((&[u8], &str), &ProcessName)> {
        Some((self.kernel()?, self.process.as_ref()?))
    }

    /// From now on the card of a rank that shares memory with nobody.
    pub(super) fn forget_host(&mut self) {
        self.host = None;
    }

    pub(super) fn encode(&self) -> Vec<u8> {
        let flags = [self.is_wanted, self.host.is_some(), self.finding.is_some(), self.process.is_some()];
        let mut bytes = vec![(0..).zip(flags).map(|(bit, flag)| u8::from(flag) << bit).sum()];
        let nowhere = Host { user: 0, network: (0, 0), boot: [0; 16], id: String::new() };
        let host = self.host.as_ref().unwrap_or(&nowhere);
        bytes.extend(host.user.to_le_bytes());
        bytes.extend(host.network.0.to_le_bytes());
        bytes.extend(host.network.1.to_le_bytes());
        bytes.extend(host.boot);
        bytes.extend(self.door);
        bytes.extend(self.finding.unwrap_or_default());
        bytes.extend(self.process.map_or([0; PROCESS_NAME_BYTES], |process| process.encode()));
        bytes.extend(host.id.as_bytes());
        bytes
    }

    /// `None` when the bytes are nothing that [`encode`](Self::encode) makes.
    pub(super) fn decode(bytes: &[u8]) -> Option<Self> {
        let (fixed, id) = bytes.split_first_chunk::<FIXED_BYTES>()?;
        let long = |at: usize| fixed[at..].first_chunk().map(|bytes| u64::from_le_bytes(*bytes));
        let host = Host {
            user: u32::from_le_bytes(*fixed[1..].first_chunk()?),
            network: (long(5)?, long(13)?),
            boot: *fixed[21..].first_chunk()?,
            id: std::str::from_utf8(id).ok().filter(|id| id.len() <= MAX_HOST_ID_BYTES)?.to_owned(),
        };
        let card = Self {
            is_wanted: fixed[0] & 1 != 0,
            host: (fixed[0] & 2 != 0).then_some(host),
            door: *fixed[37..].first_chunk()?,
            finding: (fixed[0] & 4 != 0).then_some(*fixed[37 + DOOR_BYTES..].first_chunk()?),
            process: (fixed[0] & 8 != 0).then_some(ProcessName::decode(fixed[PROCESS_AT..].first_chunk()?)),
        };
        (card.encode() == bytes).then_some(card)
    }
}

impl Host {
    fn own(id: String) -> Option<Self> {
        let network = std::fs::metadata("/proc/self/ns/net").ok()?;
        let user = rustix::process::geteuid().as_raw();
        Some(Self { user, network: (network.dev(), network.ino()), boot: boot::own()?, id })
    }
}

/// The ranks of the host of rank `own`, rising, itself among them, from the cards of all ranks: `None` when
/// it shares memory with nobody. The same on all ranks of the host.
pub(super) fn neighbours(own: Rank, cards: &[Card]) -> Option<Vec<Rank>> {
    let host = cards.get(own.index())?.host.as_ref()?;
    let places = Rank::all(u32::MAX).zip(cards).filter(|(_, card)| card.host.as_ref() == Some(host));
    let ranks: Vec<Rank> = places.map(|(rank, _)| rank).collect();
    let is_wanted = cards.first().is_some_and(|root| root.is_wanted);
    (is_wanted && (2..=Neighbourhood::MAX_RANKS).contains(&ranks.len())).then_some(ranks)
}

/// The processes of the other ranks of the host of rank `own`, by rank, of those that can be seen from it:
/// they ran when they said who they are. Unlike for memory, they need not be of one user or one network.
pub(super) fn processes(own: Rank, cards: &[Card]) -> Vec<Option<PeerProcess>> {
    let own = cards.get(own.index()).and_then(Card::process);
    let open = |card: &Card| {
        let ((kernel, own), (other_kernel, other)) = (own?, card.process()?);
        if kernel == other_kernel { other.open(own) } else { None }
    };
    cards.iter().map(open).collect()
}

/// Whether the ranks of the host of rank `own` outnumber the processors that they may use between them.
/// Launchers keep ranks on processors of their own: what one may use says nothing of the others.
pub(super) fn is_crowded(own: Rank, cards: &[Card]) -> bool {
    let own = cards.get(own.index());
    let Some(kernel) = own.and_then(Card::kernel) else { return outnumber_processors(cards.len(), []) };
    let here: Vec<&Card> = cards.iter().filter(|card| card.kernel() == Some(kernel)).collect();
    let process = |card: &&Card| card.process?.number_for(own?.process.as_ref()?);
    outnumber_processors(here.len(), here.iter().filter_map(process))
}

/// Whether so many ranks outnumber the processors that this thread and these processes may use.
pub(super) fn outnumber_processors(ranks: usize, processes: impl IntoIterator<Item = Pid>) -> bool {
    let share = std::thread::available_parallelism().map_or(1, usize::from);
    let others = processes.into_iter().flat_map(|process| processors(Some(process)));
    outnumber(ranks, share, processors(None).collect(), others)
}

/// The processors that a process may use, or this thread.
fn processors(process: Option<Pid>) -> impl Iterator<Item = usize> {
    let set = sched_getaffinity(process).unwrap_or_else(|_| CpuSet::new());
    (0..CpuSet::MAX_CPU).filter(move |&processor| set.is_set(processor))
}

/// Whether so many ranks outnumber the processors of this one and of the others, of which this one gets the
/// time of `share` at most.
fn outnumber(ranks: usize, share: usize, own: HashSet<usize>, others: impl Iterator<Item = usize>) -> bool {
    if own.len() > share {
        // The system gives them less time than there are processors, all of them together.
        return ranks > share;
    }
    let all: HashSet<usize> = own.into_iter().chain(others).collect();
    ranks > all.len().max(share)
}

/// Whether rank `own` is to tell what it has found: the first of its host that has found it, as far as hosts
/// can be told.
pub(super) fn tells_finding(own: Rank, cards: &[Card]) -> bool {
    let Some(card) = cards.get(own.index()) else { return false };
    let same =
        |other: &Card| other.host.is_some() && (&other.host, other.finding) == (&card.host, card.finding);
    card.finding.is_some() && !cards[..own.index()].iter().any(same)
}

fn digest(finding: &str) -> [u8; FINDING_BYTES] {
    let hash = Sha256::digest(finding);
    std::array::from_fn(|place| hash[place])
}

/// A card that says something in every field.
#[cfg(test)]
pub(super) fn sample() -> Card {
    let host = Host { user: 7, network: (8, 9), boot: [10; 16], id: "left".into() };
    let process = Some(ProcessName::decode(&[13; PROCESS_NAME_BYTES]));
    Card {
        is_wanted: true,
        host: Some(host),
        door: [11; DOOR_BYTES],
        finding: Some([12; FINDING_BYTES]),
        process,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use rustix::thread::sched_setaffinity;

    fn card(boot: u8, id: &str) -> Card {
        let host = Host { user: 7, network: (1, 2), boot: [boot; 16], id: id.into() };
        Card {
            is_wanted: true,
            host: Some(host),
            door: [boot; DOOR_BYTES],
            finding: None,
            process: ProcessName::own(),
        }
    }

    fn ranks(ranks: &[u32]) -> Option<Vec<Rank>> {
        Some(ranks.iter().copied().map(Rank).collect())
    }

    /// A launcher keeps each of two ranks on a processor of its own.
    #[test]
    fn ranks_that_are_kept_on_a_processor_each_are_no_crowd() {
        let all = sched_getaffinity(None).unwrap();
        let processors: Vec<usize> =
            (0..CpuSet::MAX_CPU).filter(|&processor| all.is_set(processor)).collect();
        let cards = |ranks: usize| vec![card(1, ""); ranks];
        assert!(is_crowded(Rank(0), &cards(processors.len() + 1)));
        let kept = std::thread::spawn(move || {
            let mut one = CpuSet::new();
            one.set(processors[0]);
            sched_setaffinity(None, &one).unwrap();
            // The others are where the process is.
            assert!(!is_crowded(Rank(0), &cards(processors.len())));
            assert!(is_crowded(Rank(0), &cards(processors.len() + 1)));
            assert!(outnumber_processors(2, []), "nothing is known of the others");
            let mut elsewhere = cards(processors.len() + 1);
            elsewhere.iter_mut().skip(1).for_each(|card| card.host.as_mut().unwrap().boot = [2; 16]);
            assert!(!is_crowded(Rank(0), &elsewhere), "alone on its host");
            elsewhere[0].process = None;
            assert!(!is_crowded(Rank(0), &elsewhere), "nor where it can't be named");
        });
        kept.join().unwrap();
    }

    /// A container has the time of two processors on a host of 64.
    #[test]
    fn a_share_of_time_counts_as_processors() {
        let crowd = |ranks, share, own: u64, others: u64| {
            outnumber(ranks, share, (0..own as usize).collect(), 0..others as usize)
        };
        assert!(crowd(8, 2, 64, 64));
        assert!(!crowd(2, 2, 64, 64));
        assert!(!crowd(8, 1, 1, 8), "each is kept on one of eight");
        assert!(crowd(9, 1, 1, 8));
        assert!(!crowd(8, 8, 0, 0), "nobody says what may be used");
    }

    #[test]
    fn neighbours_agree_in_everything() {
        let mut cards = vec![card(1, ""), card(2, ""), card(1, ""), card(1, "a"), card(1, "a"), card(1, "")];
        assert_eq!(neighbours(Rank(0), &cards), ranks(&[0, 2, 5]));
        assert_eq!(neighbours(Rank(5), &cards), ranks(&[0, 2, 5]));
        assert_eq!(neighbours(Rank(1), &cards), None, "alone on its host");
        assert_eq!(neighbours(Rank(4), &cards), ranks(&[3, 4]));
        assert_eq!(neighbours(Rank(6), &cards), None);
        cards[2].host.as_mut().unwrap().user = 8;
        cards[5].host.as_mut().unwrap().network.1 = 3;
        assert_eq!(neighbours(Rank(0), &cards), None);
        cards[3].host = None;
        cards[4].host = None;
        assert_eq!(neighbours(Rank(3), &cards), None, "hosts that nobody can tell");
    }

    #[test]
    fn every_finding_is_told_once_a_host() {
        let mut cards = vec![card(1, ""), card(2, ""), card(1, ""), card(2, ""), card(1, ""), card(1, "")];
        let telling =
            |cards: &[Card]| Rank::all(7).filter(|rank| tells_finding(*rank, cards)).collect::<Vec<_>>();
        assert_eq!(telling(&cards), []);
        let (one, other) = (Some(digest("one")), Some(digest("other")));
        for (card, finding) in cards.iter_mut().zip([None, one, one, one, other, one]) {
            card.finding = finding;
        }
        assert_eq!(telling(&cards), [Rank(1), Rank(2), Rank(4)]);
        cards.iter_mut().for_each(|card| card.host = None);
        assert_eq!(telling(&cards), [1, 2, 3, 4, 5].map(Rank), "hosts that nobody can tell");
    }

    #[test]
    fn processes_of_other_hosts_are_not_taken_for_others_here() {
        let mut child =
            std::process::Command::new("cat").stdin(std::process::Stdio::piped()).spawn().unwrap();
        let name = ProcessName::of(child.id()).unwrap();
        let mut cards = vec![card(1, ""), card(1, ""), card(2, ""), card(1, "a"), card(1, ""), card(1, "")];
        cards[1..].iter_mut().for_each(|card| card.process = Some(name));
        cards[4].process = None;
        // Of another network and user, and yet a process of this kernel.
        cards[5].host.as_mut().unwrap().network.1 = 3;
        cards[5].host.as_mut().unwrap().user = 8;
        let seen = |own| processes(own, &cards).iter().map(Option::is_some).collect::<Vec<_>>();
        assert_eq!(seen(Rank(0)), [false, true, false, false, false, true]);
        assert_eq!(seen(Rank(4)), [false; 6], "it does not know itself");
        assert_eq!(seen(Rank(6)), [false; 6]);
        drop(child.stdin.take());
        child.wait().unwrap();
    }

    #[test]
    fn the_wish_of_rank_0_counts() {
        let mut cards = vec![card(1, ""); 3];
        cards[1].is_wanted = false;
        assert_eq!(neighbours(Rank(1), &cards), ranks(&[0, 1, 2]));
        cards[0].is_wanted = false;
        assert_eq!(neighbours(Rank(2), &cards), None);
    }

    #[test]
    fn too_many_share_nothing() {
        let most = Neighbourhood::MAX_RANKS;
        assert!(neighbours(Rank(0), &vec![card(1, ""); most]).is_some_and(|ranks| ranks.len() == most));
        assert_eq!(neighbours(Rank(0), &vec![card(1, ""); most + 1]), None);
    }

    #[test]
    fn this_host_is_itself() {
        let identity = Identity::new(Rank(0), 2, super::super::Master { host: "127.0.0.1".into(), port: 1 });
        let (first, second) = (Card::own(&identity).unwrap(), Card::own(&identity).unwrap());
        assert!(first.host.is_some() && first.host == second.host && first.door != second.door);
        assert_eq!(Card::decode(&first.encode()), Some(first));
    }

    proptest! {
        #[test]
        fn cards_come_back(boot: u8, id in ".{0,60}", is_wanted: bool, is_known: bool, finding: Option<[u8; 8]>) {
            let mut card = Card { finding, ..card(boot, &id) };
            card.is_wanted = is_wanted;
            if !is_known {
                (card.host, card.process) = (None, None);
            }
            prop_assert_eq!(Card::decode(&card.encode()), Some(card));
        }

        #[test]
        fn no_bytes_panic(bytes in proptest::collection::vec(any::<u8>(), 0..400)) {
            let _ = Card::decode(&bytes);
        }
    }
}
