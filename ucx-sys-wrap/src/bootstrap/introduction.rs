//! How the ranks of an MPI launcher learn where to meet: rank 0 publishes it in the launcher's store.
//!
//! Rank 0 reserves a port and stores one text: its version, the job's key, the port, and this host's
//! addresses, the best one first. The key is generated for the job, unless the user has given one, which is
//! not stored. Then the ranks meet as under any launcher; the launcher's store is not used again.
//!
//! A stored key is as secret as the launcher's own channels: everyone who can read these can join the job.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use parking_lot::Mutex;
use socket2::Socket;

use super::deadline::Deadline;
use super::identity::{Identity, Introduction, Published};
use super::interface::{LOOPBACK, address_of, outside_addresses};
use super::key::JobKey;
use super::reserve::reserve;
use super::variables::not_set;
use crate::{Error, Rank, Result};

/// The version of the text, its first word.
const FORM: &str = "1";

/// Replaces the key when the user has given it.
const NO_KEY: &str = "-";

/// What this process has learned from its launcher, for all its groups: a launcher may answer a process only
/// once (MPICH accepts no second `init` on `PMI_FD`).
static LEARNED: Mutex<Option<Learned>> = Mutex::new(None);

struct Learned {
    /// For which rank of which job.
    place: (Introduction, Rank, u32),
    root: RootInfo,
    /// Rank 0's port, reserved for this and later groups, and where to listen.
    reserved: Option<(Socket, SocketAddr)>,
}

/// Learns the master and the key from an MPI launcher; under other launchers returns the identity unchanged.
///
/// Under an MPI launcher the first call of a process blocks until all ranks have called it, at most the join
/// timeout; later calls return the same master and key. After PMI-1, an MPI library in the same process can't
/// use the launcher's descriptor; PMIx does not disturb an MPI library that is initialised. Rank 0's port
/// stays reserved while the process lives.
///
/// # Errors
/// [`Error::Launcher`] when the launcher's store can't be used; [`Error::Environment`] when rank 0 has a key
/// of the user's and this rank has none; [`Error::System`] when rank 0 can't reserve a port.
pub fn introduce(identity: &Identity) -> Result<Identity> {
    if identity.world_size <= 1 || !is_asked(&identity.introduction) {
        return Ok(identity.clone());
    }
    let place = (identity.introduction.clone(), identity.rank, identity.world_size);
    let mut slot = LEARNED.lock();
    let learned = match slot.take().filter(|learned| learned.place == place) {
        Some(learned) => learned,
        None => {
            let (root, reserved) = learn(identity)?;
            Learned { place, root, reserved }
        }
    };
    let learned = slot.insert(learned);
    let mut resolved = learned.root.apply(identity)?;
    if let (Some((_, listen)), Some(published)) = (&learned.reserved, &mut resolved.published) {
        (resolved.port_reserved, published.listen) = (true, *listen);
    }
    Ok(resolved)
}

/// Whether the launcher's store is asked.
fn is_asked(introduction: &Introduction) -> bool {
    matches!(introduction, Introduction::Pmix | Introduction::Pmi { .. })
}

fn learn(identity: &Identity) -> Result<(RootInfo, Option<(Socket, SocketAddr)>)> {
    let share = |text| store::share(identity, text).map_err(|why| failed(identity, why));
    if identity.rank != Rank(0) {
        let text = share(None)?;
        let root = RootInfo::decode(&text);
        return Ok((root.ok_or_else(|| failed(identity, format!("rank 0 stored {text:?}")))?, None));
    }
    let (root, reserved, listen) = RootInfo::offer(identity)?;
    share(Some(&root.encode()))?;
    Ok((root, Some((reserved, listen))))
}

/// Loads the PMIx library, which ranks under `mpirun` and `srun --mpi=pmix` need.
///
/// # Errors
/// Why it can't be used, with the remedy.
pub fn pmix_available() -> std::result::Result<(), String> {
    store::available()
}

/// Rank 0's key and addresses, for the other ranks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct RootInfo {
    /// `None` if the user gives it to every rank.
    pub(super) key: Option<JobKey>,
    pub(super) port: u16,
    /// The best first.
    pub(super) addresses: Vec<IpAddr>,
}

impl RootInfo {
    /// Of this process as rank 0: reserves a port, and generates a key unless the user has given one. Also
    /// returns the port's reservation and where to listen.
    pub(super) fn offer(identity: &Identity) -> Result<(Self, Socket, SocketAddr)> {
        let (reserved, listen, own) = reserve_port(identity)?;
        let key = if identity.key.is_none() { Some(JobKey::generate()?) } else { None };
        let reached = identity.reached_at(listen, &Deadline::after(identity.join_timeout))?;
        let port = reached.first().map_or(listen.port(), SocketAddr::port);
        let is_announced = identity.announce.is_some();
        let addresses = if is_announced { reached.iter().map(SocketAddr::ip).collect() } else { own };
        Ok((Self { key, port, addresses }, reserved, listen))
    }

    /// Version, key, port and as many addresses as fit, separated by commas.
    fn encode(&self) -> String {
        let key = self.key.as_ref().map_or(NO_KEY.into(), JobKey::to_hex);
        let mut text = format!("{FORM},{key},{}", self.port);
        for address in self.addresses.iter().map(IpAddr::to_string) {
            if text.len() + 1 + address.len() <= store::MAX_TEXT_BYTES {
                text.push(',');
                text.push_str(&address);
            }
        }
        text
    }

    fn decode(text: &str) -> Option<Self> {
        let mut words = text.split(',');
        words.next().filter(|&form| form == FORM)?;
        let key = match words.next()? {
            NO_KEY => None,
            key => Some(JobKey::parse(key)?),
        };
        let port = words.next()?.parse().ok().filter(|&port| port != 0)?;
        let addresses = words.map(|word| word.parse().ok()).collect::<Option<Vec<IpAddr>>>()?;
        (!addresses.is_empty()).then_some(Self { key, port, addresses })
    }

    /// The identity with this key and these addresses.
    pub(super) fn apply(&self, identity: &Identity) -> Result<Identity> {
        let mut resolved = identity.clone();
        // The user's key takes precedence. If rank 0 has another, both report it when they meet.
        resolved.key = identity.key.clone().or_else(|| self.key.clone());
        if resolved.key.is_none() {
            let expected = "the same key on all ranks (or BREVITY_KEY_FILE): rank 0 has one";
            return Err(not_set("BREVITY_KEY", expected));
        }
        let addresses: Vec<SocketAddr> =
            self.addresses.iter().map(|&ip| SocketAddr::new(ip, self.port)).collect();
        let first = addresses.first().copied().unwrap_or(SocketAddr::new(LOOPBACK, self.port));
        resolved.master = super::Master { host: first.ip().to_string(), port: self.port };
        resolved.introduction = Introduction::Environment;
        resolved.published = Some(Published { listen: first, addresses });
        Ok(resolved)
    }
}

/// Reserves a port that the other ranks can reach, and returns the addresses for it.
fn reserve_port(identity: &Identity) -> Result<(Socket, SocketAddr, Vec<IpAddr>)> {
    let reserve = |address: IpAddr| {
        reserve(address, identity.ports)
            .map_err(|error| Error::system(format!("rank 0 can't reserve a port on {address}"), error))
    };
    let addresses = match &identity.interface {
        Some(name) => vec![address_of(name, LOOPBACK)?],
        None if identity.one_host => vec![LOOPBACK],
        None => outside_addresses()?,
    };
    let (port, listen) = match addresses.as_slice() {
        [] => {
            return Err(failed(
                identity,
                "this host has no network interface that is up but loopback".into(),
            ));
        }
        &[only] => reserve(only)?,
        // A host may have no IPv6.
        _ => reserve(Ipv6Addr::UNSPECIFIED.into()).or_else(|_| reserve(Ipv4Addr::UNSPECIFIED.into()))?,
    };
    Ok((port, listen, addresses))
}

/// The launcher's store.
#[cfg(feature = "pmi")]
mod store {
    use std::path::PathBuf;
    use std::time::Instant;

    use brevity_pmi::Error::{Incomplete, NotLoaded};
    pub(super) use brevity_pmi::MAX_TEXT_BYTES;
    use brevity_pmi::{pmix, wire};

    use super::{Identity, Introduction};

    const REMEDY: &str = "install PMIx (package libpmix2), or set BREVITY_PMIX_LIB to its libpmix.so.2";

    /// Sends rank 0's text to all ranks.
    pub(super) fn share(identity: &Identity, text: Option<&str>) -> Result<String, String> {
        let now = Instant::now();
        let deadline = now.checked_add(identity.join_timeout).unwrap_or(now);
        let shared = match identity.introduction {
            Introduction::Pmix => pmix::share(library().as_deref(), identity.rank.0, text, deadline),
            Introduction::Pmi { descriptor } => wire::share(descriptor, text, deadline),
            Introduction::Environment | Introduction::Id(_) => return Err("it was not asked".into()),
        };
        shared.map_err(|error| match error {
            NotLoaded { .. } | Incomplete { .. } => format!("{error}; {REMEDY}"),
            error => error.to_string(),
        })
    }

    pub(super) fn available() -> Result<(), String> {
        pmix::available(library().as_deref()).map_err(|error| format!("{error}; {REMEDY}"))
    }

    fn library() -> Option<PathBuf> {
        std::env::var_os("BREVITY_PMIX_LIB").map(PathBuf::from)
    }
}

#[cfg(not(feature = "pmi"))]
mod store {
    pub(super) const MAX_TEXT_BYTES: usize = 512;
    const LEFT_OUT: &str = "this program is built without the feature `pmi`: build it with that";

    pub(super) fn share(_: &super::Identity, _: Option<&str>) -> Result<String, String> {
        Err(LEFT_OUT.into())
    }

    pub(super) fn available() -> Result<(), String> {
        Err(LEFT_OUT.into())
    }
}

fn failed(identity: &Identity, why: String) -> Error {
    Error::Launcher { launcher: identity.launcher.map_or("the launcher", super::Launcher::name), why }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bootstrap::{Launcher, Master};
    use proptest::prelude::*;

    fn root(key: bool, addresses: &[&str]) -> RootInfo {
        let key = key.then(|| JobKey::generate().unwrap());
        RootInfo {
            key,
            port: 4000,
            addresses: addresses.iter().map(|address| address.parse().unwrap()).collect(),
        }
    }

    fn identity(key: Option<&str>) -> Identity {
        let mut identity = Identity::new(Rank(1), 2, Master { host: "127.0.0.1".into(), port: 0 });
        identity.key = key.map(|key| JobKey::parse(key).unwrap());
        identity.introduction = Introduction::Pmix;
        identity.launcher = Some(Launcher::OpenMpi);
        identity
    }

    #[test]
    fn texts_come_back() {
        for root in [root(true, &["127.0.0.1"]), root(false, &["192.0.2.7", "fd00::2", "198.51.100.1"])] {
            assert_eq!(RootInfo::decode(&root.encode()), Some(root));
        }
        let many: Vec<String> =
            (0..100).map(|last| format!("2001:db8:ffff:ffff:ffff:ffff:ffff:{last:x}")).collect();
        let many = root(true, &many.iter().map(String::as_str).collect::<Vec<_>>());
        let text = many.encode();
        assert!(text.len() <= store::MAX_TEXT_BYTES);
        let kept = RootInfo::decode(&text).unwrap().addresses;
        assert!(kept.len() > 5 && many.addresses.starts_with(&kept));
    }

    #[test]
    fn invalid_texts() {
        for text in [
            "",
            "1",
            "2,-,4000,127.0.0.1",
            "1,-,0,127.0.0.1",
            "1,-,4000",
            "1,short,4000,127.0.0.1",
            "1,-,4000,node",
        ] {
            assert_eq!(RootInfo::decode(text), None, "{text}");
        }
    }

    proptest! {
        #[test]
        fn no_text_panics(text in "[0-9a-f,.:-]{0,60}") {
            let _ = RootInfo::decode(&text);
        }
    }

    #[test]
    fn the_users_key_counts() {
        let drawn = root(true, &["192.0.2.7"]);
        assert_eq!(drawn.apply(&identity(None)).unwrap().key, drawn.key);
        let own = "correct horse battery";
        assert_eq!(drawn.apply(&identity(Some(own))).unwrap().key, JobKey::parse(own));
        let kept_back = root(false, &["192.0.2.7"]);
        assert_eq!(kept_back.apply(&identity(Some(own))).unwrap().key, JobKey::parse(own));
        let missing = kept_back.apply(&identity(None)).unwrap_err();
        assert!(matches!(missing, Error::Environment { variable: "BREVITY_KEY", .. }), "{missing}");
    }

    #[test]
    fn all_ranks_on_one_host_meet_on_loopback() {
        let mut here = identity(None);
        here.one_host = true;
        let (_port, listen, addresses) = reserve_port(&here).unwrap();
        assert_eq!((listen.ip(), addresses), (LOOPBACK, vec![LOOPBACK]));
        here.one_host = false;
        match reserve_port(&here) {
            Ok((_port, _, addresses)) => assert!(addresses.iter().all(|address| !address.is_loopback())),
            Err(error) => assert!(error.to_string().contains("no network interface"), "{error}"),
        }
    }
}
