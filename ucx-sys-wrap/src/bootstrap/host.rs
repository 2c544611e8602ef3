//! Which ranks are on one host, and which processes they are.

use std::collections::HashSet;
use std::os::unix::fs::MetadataExt;

use rustix::process::Pid;
use rustix::thread::{CpuSet, sched_getaffinity};
use sha2::{Digest, Sha256};

use super::identity::Identity;
use super::key::fill_random;
use crate::boot::{self, Boot};
use crate::fields::Fields;
use crate::process::{PROCESS_NAME_BYTES, PeerProcess, ProcessName};
use crate::shm::LocalGroup;
use crate::{Rank, Result};

/// Bytes of the random name of the socket on which a rank waits for its local peers.
pub(super) const SOCKET_NAME_BYTES: usize = 16;

pub(super) const MAX_HOST_ID_BYTES: usize = 255;

const FINDING_BYTES: usize = 8;

/// A rank's host and process, for the others to compare.
///
/// On the wire: flags 1, user 4, network 16, boot 16, socket name 16, finding 8, process 28, then the host
/// id; absent fields are zero.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct HostInfo {
    /// Whether this rank was asked to share memory; only rank 0's counts.
    pub(super) is_wanted: bool,
    /// `None` where the system does not tell.
    pub(super) host: Option<Host>,
    /// Where its local peers connect to it.
    pub(super) socket_name: [u8; SOCKET_NAME_BYTES],
    /// A digest of this rank's warning of its key file.
    finding: Option<[u8; FINDING_BYTES]>,
    /// `None` where the system does not tell.
    process: Option<ProcessName>,
}

/// Ranks whose hosts are equal can share memory and connect to each other.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Host {
    /// Processes of another user are no local peers.
    user: u32,
    /// The network namespace, in which abstract sockets are visible.
    network: (u64, u64),
    /// The running kernel.
    boot: Boot,
    /// `BREVITY_HOST_ID`, or nothing.
    id: String,
}

impl HostInfo {
    /// This rank's, with a new socket name.
    ///
    /// # Errors
    /// When the system has no random bytes.
    pub(super) fn own(identity: &Identity) -> Result<Self> {
        let mut socket_name = [0; SOCKET_NAME_BYTES];
        fill_random(&mut socket_name)?;
        let host = Host::own(identity.host_id.clone().unwrap_or_default());
        if host.is_none() {
            tracing::debug!("this host can't be told from others: its ranks share no memory");
        }
        let finding = identity.exposed_key.as_deref().map(digest);
        let process = ProcessName::own();
        Ok(Self { is_wanted: identity.shared_memory, host, socket_name, finding, process })
    }

    /// The running kernel: its boot, and the host's id.
    fn kernel(&self) -> Option<(&[u8], &str)> {
        self.host.as_ref().map(|host| (&host.boot[..], &*host.id))
    }

    pub(super) fn encode(&self) -> Vec<u8> {
        let flags = [self.is_wanted, self.host.is_some(), self.finding.is_some(), self.process.is_some()];
        let flags = (0..).zip(flags).map(|(bit, flag)| u8::from(flag) << bit).sum();
        let host = self.host.clone().unwrap_or_default();
        [
            &[flags][..],
            &host.user.to_le_bytes(),
            &host.network.0.to_le_bytes(),
            &host.network.1.to_le_bytes(),
            &host.boot,
            &self.socket_name,
            &self.finding.unwrap_or_default(),
            &self.process.map_or([0; PROCESS_NAME_BYTES], |process| process.encode()),
            host.id.as_bytes(),
        ]
        .concat()
    }

    /// `None` when the bytes are nothing that [`encode`](Self::encode) makes.
    pub(super) fn decode(bytes: &[u8]) -> Option<Self> {
        let mut fields = Fields(bytes);
        let [flags] = fields.array()?;
        let (user, network, boot) = (fields.u32()?, (fields.u64()?, fields.u64()?), fields.array()?);
        let (socket_name, finding) = (fields.array()?, fields.array()?);
        let process = ProcessName::decode(&mut fields)?;
        let id = std::str::from_utf8(fields.0).ok().filter(|id| id.len() <= MAX_HOST_ID_BYTES)?.to_owned();
        let info = Self {
            is_wanted: flags & 1 != 0,
            host: (flags & 2 != 0).then_some(Host { user, network, boot, id }),
            socket_name,
            finding: (flags & 4 != 0).then_some(finding),
            process: (flags & 8 != 0).then_some(process),
        };
        (info.encode() == bytes).then_some(info)
    }
}

impl Host {
    fn own(id: String) -> Option<Self> {
        let network = std::fs::metadata("/proc/self/ns/net").ok()?;
        let user = rustix::process::geteuid().as_raw();
        Some(Self { user, network: (network.dev(), network.ino()), boot: boot::own()?, id })
    }
}

/// The ranks of the host of rank `own`, rising, itself among them: `None` when it shares memory with no
/// other. The same on all ranks of the host.
pub(super) fn local_peers(own: Rank, infos: &[HostInfo]) -> Option<Vec<Rank>> {
    let host = infos.get(own.index())?.host.as_ref()?;
    let places = Rank::all(u32::MAX).zip(infos).filter(|(_, info)| info.host.as_ref() == Some(host));
    let ranks: Vec<Rank> = places.map(|(rank, _)| rank).collect();
    let is_wanted = infos.first().is_some_and(|root| root.is_wanted);
    (is_wanted && (2..=LocalGroup::MAX_RANKS).contains(&ranks.len())).then_some(ranks)
}

/// The number of each rank's host, from 0 on in the order of their first ranks. A rank whose host nobody can
/// tell has one of its own.
pub(super) fn numbers(infos: &[HostInfo]) -> Vec<u32> {
    let mut hosts: Vec<Option<&Host>> = Vec::new();
    let mut numbers = Vec::with_capacity(infos.len());
    for info in infos {
        let own = info.host.as_ref();
        let known = hosts.iter().position(|host| own.is_some() && *host == own);
        numbers.push(known.unwrap_or(hosts.len()) as u32);
        if known.is_none() {
            hosts.push(own);
        }
    }
    numbers
}

/// The processes of the other ranks on the kernel of rank `own`, by rank, of those that are visible to it.
/// Unlike for memory, they may be of another user or network.
pub(super) fn processes(own: Rank, infos: &[HostInfo]) -> Vec<Option<PeerProcess>> {
    let own = infos.get(own.index());
    let open = |info: &HostInfo| {
        let own = own.filter(|own| own.kernel().is_some() && own.kernel() == info.kernel())?;
        info.process?.open(own.process.as_ref()?)
    };
    infos.iter().map(open).collect()
}

/// Whether the ranks of the host of rank `own` outnumber the processors that they may use between them.
/// Launchers may bind each rank to other processors, so those of all ranks count.
pub(super) fn is_crowded(own: Rank, infos: &[HostInfo]) -> bool {
    let own = infos.get(own.index());
    let Some(kernel) = own.and_then(HostInfo::kernel) else { return outnumber_processors(infos.len(), []) };
    let here: Vec<&HostInfo> = infos.iter().filter(|info| info.kernel() == Some(kernel)).collect();
    let process = |info: &&HostInfo| info.process?.number_for(own?.process.as_ref()?);
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

/// Whether so many ranks outnumber this rank's processors and those of the others; `share` is the number of
/// processors whose time this rank may use.
fn outnumber(ranks: usize, share: usize, own: HashSet<usize>, others: impl Iterator<Item = usize>) -> bool {
    if own.len() > share {
        // A quota limits the time of all ranks together.
        return ranks > share;
    }
    let all: HashSet<usize> = own.into_iter().chain(others).collect();
    ranks > all.len().max(share)
}

/// Whether rank `own` is the first of its host with its finding, and so warns of it.
pub(super) fn reports_finding(own: Rank, infos: &[HostInfo]) -> bool {
    let Some(info) = infos.get(own.index()) else { return false };
    let is_same =
        |other: &HostInfo| other.host.is_some() && (&other.host, other.finding) == (&info.host, info.finding);
    info.finding.is_some() && !infos[..own.index()].iter().any(is_same)
}

fn digest(finding: &str) -> [u8; FINDING_BYTES] {
    let hash = Sha256::digest(finding);
    std::array::from_fn(|place| hash[place])
}

/// A sample with every field set.
#[cfg(test)]
pub(super) fn sample() -> HostInfo {
    let host = Host { user: 7, network: (8, 9), boot: [10; 16], id: "left".into() };
    let process = ProcessName::decode(&mut Fields(&[13; PROCESS_NAME_BYTES]));
    HostInfo {
        is_wanted: true,
        host: Some(host),
        socket_name: [11; SOCKET_NAME_BYTES],
        finding: Some([12; FINDING_BYTES]),
        process,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use rustix::thread::sched_setaffinity;

    fn info(boot: u8, id: &str) -> HostInfo {
        let host = Host { user: 7, network: (1, 2), boot: [boot; 16], id: id.into() };
        HostInfo {
            is_wanted: true,
            host: Some(host),
            socket_name: [boot; SOCKET_NAME_BYTES],
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
        let infos = |ranks: usize| vec![info(1, ""); ranks];
        assert!(is_crowded(Rank(0), &infos(processors.len() + 1)));
        let kept = std::thread::spawn(move || {
            let mut one = CpuSet::new();
            one.set(processors[0]);
            sched_setaffinity(None, &one).unwrap();
            // The others are where the process is.
            assert!(!is_crowded(Rank(0), &infos(processors.len())));
            assert!(is_crowded(Rank(0), &infos(processors.len() + 1)));
            assert!(outnumber_processors(2, []), "nothing is known of the others");
            let mut elsewhere = infos(processors.len() + 1);
            elsewhere.iter_mut().skip(1).for_each(|info| info.host.as_mut().unwrap().boot = [2; 16]);
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
    fn local_peers_agree_in_everything() {
        let mut infos = vec![info(1, ""), info(2, ""), info(1, ""), info(1, "a"), info(1, "a"), info(1, "")];
        assert_eq!(local_peers(Rank(0), &infos), ranks(&[0, 2, 5]));
        assert_eq!(local_peers(Rank(5), &infos), ranks(&[0, 2, 5]));
        assert_eq!(local_peers(Rank(1), &infos), None, "alone on its host");
        assert_eq!(local_peers(Rank(4), &infos), ranks(&[3, 4]));
        assert_eq!(local_peers(Rank(6), &infos), None);
        infos[2].host.as_mut().unwrap().user = 8;
        infos[5].host.as_mut().unwrap().network.1 = 3;
        assert_eq!(local_peers(Rank(0), &infos), None);
        infos[3].host = None;
        infos[4].host = None;
        assert_eq!(local_peers(Rank(3), &infos), None, "hosts that nobody can tell");
    }

    #[test]
    fn hosts_are_numbered_by_their_first_ranks() {
        let mut infos = vec![info(1, ""), info(2, ""), info(1, ""), info(1, "a"), info(2, ""), info(3, "")];
        assert_eq!(numbers(&infos), [0, 1, 0, 2, 1, 3]);
        infos[0].host = None;
        infos[2].host = None;
        assert_eq!(numbers(&infos), [0, 1, 2, 3, 1, 4], "hosts that nobody can tell");
    }

    #[test]
    fn every_finding_is_told_once_a_host() {
        let mut infos = vec![info(1, ""), info(2, ""), info(1, ""), info(2, ""), info(1, ""), info(1, "")];
        let telling = |infos: &[HostInfo]| {
            Rank::all(7).filter(|rank| reports_finding(*rank, infos)).collect::<Vec<_>>()
        };
        assert_eq!(telling(&infos), []);
        let (one, other) = (Some(digest("one")), Some(digest("other")));
        for (info, finding) in infos.iter_mut().zip([None, one, one, one, other, one]) {
            info.finding = finding;
        }
        assert_eq!(telling(&infos), [Rank(1), Rank(2), Rank(4)]);
        infos.iter_mut().for_each(|info| info.host = None);
        assert_eq!(telling(&infos), [1, 2, 3, 4, 5].map(Rank), "hosts that nobody can tell");
    }

    #[test]
    fn processes_of_other_hosts_are_not_taken_for_others_here() {
        let mut child =
            std::process::Command::new("cat").stdin(std::process::Stdio::piped()).spawn().unwrap();
        let name = ProcessName::of(child.id()).unwrap();
        let mut infos = vec![info(1, ""), info(1, ""), info(2, ""), info(1, "a"), info(1, ""), info(1, "")];
        infos[1..].iter_mut().for_each(|info| info.process = Some(name));
        infos[4].process = None;
        // Of another network and user, and yet a process of this kernel.
        infos[5].host.as_mut().unwrap().network.1 = 3;
        infos[5].host.as_mut().unwrap().user = 8;
        let seen = |own| processes(own, &infos).iter().map(Option::is_some).collect::<Vec<_>>();
        assert_eq!(seen(Rank(0)), [false, true, false, false, false, true]);
        assert_eq!(seen(Rank(4)), [false; 6], "it does not know itself");
        assert_eq!(seen(Rank(6)), [false; 6]);
        drop(child.stdin.take());
        child.wait().unwrap();
    }

    #[test]
    fn the_wish_of_rank_0_counts() {
        let mut infos = vec![info(1, ""); 3];
        infos[1].is_wanted = false;
        assert_eq!(local_peers(Rank(1), &infos), ranks(&[0, 1, 2]));
        infos[0].is_wanted = false;
        assert_eq!(local_peers(Rank(2), &infos), None);
    }

    #[test]
    fn too_many_share_nothing() {
        let most = LocalGroup::MAX_RANKS;
        assert!(local_peers(Rank(0), &vec![info(1, ""); most]).is_some_and(|ranks| ranks.len() == most));
        assert_eq!(local_peers(Rank(0), &vec![info(1, ""); most + 1]), None);
    }

    #[test]
    fn this_host_is_itself() {
        let identity = Identity::new(Rank(0), 2, super::super::Master { host: "127.0.0.1".into(), port: 1 });
        let (first, second) = (HostInfo::own(&identity).unwrap(), HostInfo::own(&identity).unwrap());
        assert!(first.host.is_some() && first.host == second.host && first.socket_name != second.socket_name);
        assert_eq!(HostInfo::decode(&first.encode()), Some(first));
    }

    proptest! {
        #[test]
        fn infos_come_back(
            boot: u8,
            id in ".{0,60}",
            is_wanted: bool,
            is_known: bool,
            finding: Option<[u8; 8]>,
        ) {
            let mut info = HostInfo { finding, ..info(boot, &id) };
            info.is_wanted = is_wanted;
            if !is_known {
                (info.host, info.process) = (None, None);
            }
            prop_assert_eq!(HostInfo::decode(&info.encode()), Some(info));
        }

        #[test]
        fn no_bytes_panic(bytes in proptest::collection::vec(any::<u8>(), 0..400)) {
            let _ = HostInfo::decode(&bytes);
        }
    }
}
