//! How the ranks of an MPI launcher learn where to meet: rank 0 tells them through the launcher's own store.
//!
//! Rank 0 reserves a port and stores one text: the form of the text, the job's key, the port, and this host's
//! addresses, the best one first. The key is drawn for the job unless the user has given one, which is then
//! not stored. From there on the rendezvous is the same as under any launcher, and the launcher's store is
//! not used again.
//!
//! A stored key is as secret as the launcher's own channels: whoever can read these can join the job. A key
//! that users bring (`BREVITY_KEY_FILE`) does not go through them.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::PathBuf;
use std::time::Instant;

use brevity_pmi::{MAX_TEXT_BYTES, pmix, wire};
use parking_lot::Mutex;
use socket2::Socket;

use super::deadline::Deadline;
use super::identity::{Identity, Introduction, Published};
use super::interface::{LOOPBACK, address_of, outside_addresses};
use super::key::JobKey;
use super::reserve::reserve;
use super::variables::not_set;
#[cfg(not(feature = "pmi"))]
use super::without_pmi as brevity_pmi;
use crate::{Error, Rank, Result};

/// The variable that names the library.
const LIBRARY: &str = "BREVITY_PMIX_LIB";

const REMEDY: &str = "install PMIx (package libpmix2), or set BREVITY_PMIX_LIB to its libpmix.so.2";

/// The first word of a text that this version understands.
const FORM: &str = "1";

/// Where the key would stand when the user brings it.
const NO_KEY: &str = "-";

/// What this process has learned from its launcher.
///
/// A launcher answers a process once: MPICH takes no second `init` on `PMI_FD`. Later groups of the process
/// meet where the first one did, with its key.
static LEARNED: Mutex<Option<Learned>> = Mutex::new(None);

struct Learned {
    /// Who has asked.
    place: (Introduction, Rank, u32),
    card: Card,
    /// Rank 0's port, reserved for this and later groups, and where to listen.
    door: Option<(Socket, SocketAddr)>,
}

/// Learns where to meet and which key to show, if only the launcher can say it; else gives the identity back.
///
/// Under an MPI launcher the first call of a process blocks until all ranks have called it, at most the join
/// timeout; later calls return what it has learned. See [`wire::share`] and [`pmix::share`] for what the
/// first call means for an MPI library in the same process. Rank 0's port stays reserved while the process
/// lives.
///
/// # Errors
/// [`Error::Launcher`] when the launcher's store can't be used; [`Error::Environment`] when rank 0 has a key
/// of the user's and this rank has none; [`Error::System`] when rank 0 can't reserve a port.
pub fn introduce(identity: &Identity) -> Result<Identity> {
    if identity.world_size <= 1 || identity.introduction == Introduction::Environment {
        return Ok(identity.clone());
    }
    let place = (identity.introduction, identity.rank, identity.world_size);
    let mut slot = LEARNED.lock();
    let learned = match slot.take().filter(|learned| learned.place == place) {
        Some(learned) => learned,
        None => learn(identity)?,
    };
    let learned = slot.insert(learned);
    let mut resolved = learned.card.apply(identity)?;
    if let (Some((_, listen)), Some(published)) = (&learned.door, &mut resolved.published) {
        (resolved.port_reserved, published.listen) = (true, *listen);
    }
    Ok(resolved)
}

/// Asks the launcher; rank 0 tells it first.
fn learn(identity: &Identity) -> Result<Learned> {
    let place = (identity.introduction, identity.rank, identity.world_size);
    if identity.rank != Rank(0) {
        let text = share(identity, None)?;
        let card = Card::decode(&text).ok_or_else(|| failed(identity, format!("rank 0 stored {text:?}")))?;
        return Ok(Learned { place, card, door: None });
    }
    let (reserved, listen, own) = open_door(identity)?;
    let key = if identity.key.is_none() { Some(JobKey::generate()?) } else { None };
    let reached = identity.reached_at(listen, &Deadline::after(identity.join_timeout))?;
    let port = reached.first().map_or(listen.port(), SocketAddr::port);
    let is_announced = identity.announce.is_some();
    let addresses = if is_announced { reached.iter().map(SocketAddr::ip).collect() } else { own };
    let card = Card { key, port, addresses };
    share(identity, Some(&card.encode()))?;
    Ok(Learned { place, card, door: Some((reserved, listen)) })
}

/// Whether a PMIx library is there, which ranks under `mpirun` and `srun --mpi=pmix` need; loads it.
///
/// # Errors
/// Why it can't be used, with the remedy.
pub fn pmix_available() -> std::result::Result<(), String> {
    let found = pmix::available(library().as_deref());
    found
        .map_err(|error| if cfg!(feature = "pmi") { format!("{error}; {REMEDY}") } else { error.to_string() })
}

/// What rank 0 stores.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Card {
    key: Option<JobKey>,
    port: u16,
    addresses: Vec<IpAddr>,
}

impl Card {
    /// Form, key, port, addresses, with commas; as many addresses as fit.
    fn encode(&self) -> String {
        let key = self.key.as_ref().map_or(NO_KEY.into(), JobKey::to_hex);
        let mut text = format!("{FORM},{key},{}", self.port);
        for address in self.addresses.iter().map(IpAddr::to_string) {
            if text.len() + 1 + address.len() <= MAX_TEXT_BYTES {
                text.push(',');
                text.push_str(&address);
            }
        }
        text
    }

    /// `None` when the text is none of this form.
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

    /// The identity with what the card says.
    fn apply(&self, identity: &Identity) -> Result<Identity> {
        let mut resolved = identity.clone();
        // A key of the user's own counts; if rank 0 has drawn another, both say so.
        resolved.key = identity.key.clone().or_else(|| self.key.clone());
        if resolved.key.is_none() {
            return Err(not_set(
                "BREVITY_KEY",
                "the same key on all ranks (or BREVITY_KEY_FILE): rank 0 has one",
            ));
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

/// Reserves a port where the other ranks can reach it, and says at which addresses.
fn open_door(identity: &Identity) -> Result<(Socket, SocketAddr, Vec<IpAddr>)> {
    let door = |address: IpAddr| {
        reserve(address, identity.ports)
            .map_err(|error| Error::system(format!("rank 0 can't reserve a port on {address}"), error))
    };
    let single = match &identity.interface {
        Some(name) => Some(address_of(name, LOOPBACK)?),
        None => identity.one_host.then_some(LOOPBACK),
    };
    let addresses = match single {
        Some(address) => vec![address],
        None => outside_addresses()?,
    };
    match addresses.as_slice() {
        [] => Err(failed(identity, "this host has no network interface that is up but loopback".into())),
        &[only] => door(only).map(|(port, listen)| (port, listen, addresses)),
        _ => {
            // A host without IPv6 has only the other kind of "all addresses".
            let (port, listen) =
                door(Ipv6Addr::UNSPECIFIED.into()).or_else(|_| door(Ipv4Addr::UNSPECIFIED.into()))?;
            Ok((port, listen, addresses))
        }
    }
}

/// Sends rank 0's text to all ranks through the launcher.
fn share(identity: &Identity, text: Option<&str>) -> Result<String> {
    let now = Instant::now();
    let deadline = now.checked_add(identity.join_timeout).unwrap_or(now);
    let shared = match identity.introduction {
        Introduction::Pmix => pmix::share(library().as_deref(), identity.rank.0, text, deadline),
        Introduction::Pmi { descriptor } => wire::share(descriptor, text, deadline),
        Introduction::Environment => return Err(failed(identity, "it was not asked".into())),
    };
    shared.map_err(|error| match error {
        error @ (brevity_pmi::Error::NotLoaded { .. } | brevity_pmi::Error::Incomplete { .. }) => {
            failed(identity, format!("{error}; {REMEDY}"))
        }
        error => failed(identity, error.to_string()),
    })
}

/// The file that the user names as the PMIx library.
fn library() -> Option<PathBuf> {
    std::env::var_os(LIBRARY).map(PathBuf::from)
}

fn failed(identity: &Identity, why: String) -> Error {
    Error::Launcher { launcher: identity.launcher.map_or("the launcher", super::Launcher::name), why }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bootstrap::{Launcher, Master};
    use proptest::prelude::*;

    fn card(key: bool, addresses: &[&str]) -> Card {
        let key = key.then(|| JobKey::generate().unwrap());
        Card {
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
    fn cards_come_back() {
        for card in [card(true, &["127.0.0.1"]), card(false, &["192.0.2.7", "fd00::2", "198.51.100.1"])] {
            assert_eq!(Card::decode(&card.encode()), Some(card));
        }
        let many: Vec<String> =
            (0..100).map(|last| format!("2001:db8:ffff:ffff:ffff:ffff:ffff:{last:x}")).collect();
        let many = card(true, &many.iter().map(String::as_str).collect::<Vec<_>>());
        let text = many.encode();
        assert!(text.len() <= MAX_TEXT_BYTES);
        let kept = Card::decode(&text).unwrap().addresses;
        assert!(kept.len() > 5 && many.addresses.starts_with(&kept));
    }

    #[test]
    fn texts_that_are_no_cards() {
        for text in [
            "",
            "1",
            "2,-,4000,127.0.0.1",
            "1,-,0,127.0.0.1",
            "1,-,4000",
            "1,short,4000,127.0.0.1",
            "1,-,4000,node",
        ] {
            assert_eq!(Card::decode(text), None, "{text}");
        }
    }

    proptest! {
        #[test]
        fn no_text_panics(text in "[0-9a-f,.:-]{0,60}") {
            let _ = Card::decode(&text);
        }
    }

    #[test]
    fn the_users_key_counts() {
        let drawn = card(true, &["192.0.2.7"]);
        assert_eq!(drawn.apply(&identity(None)).unwrap().key, drawn.key);
        let own = "correct horse battery";
        assert_eq!(drawn.apply(&identity(Some(own))).unwrap().key, JobKey::parse(own));
        let kept_back = card(false, &["192.0.2.7"]);
        assert_eq!(kept_back.apply(&identity(Some(own))).unwrap().key, JobKey::parse(own));
        let missing = kept_back.apply(&identity(None)).unwrap_err();
        assert!(matches!(missing, Error::Environment { variable: "BREVITY_KEY", .. }), "{missing}");
    }

    #[test]
    fn all_ranks_on_one_host_meet_on_loopback() {
        let mut here = identity(None);
        here.one_host = true;
        let (_port, listen, addresses) = open_door(&here).unwrap();
        assert_eq!((listen.ip(), addresses), (LOOPBACK, vec![LOOPBACK]));
        here.one_host = false;
        match open_door(&here) {
            Ok((_port, _, addresses)) => assert!(addresses.iter().all(|address| !address.is_loopback())),
            Err(error) => assert!(error.to_string().contains("no network interface"), "{error}"),
        }
    }
}
