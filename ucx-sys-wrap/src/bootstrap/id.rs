//! An identifier of a job, which the caller's own store carries from rank 0 to the other ranks.
//!
//! It holds what the ranks need to meet: the job's key, unless the user gives one to every rank, a random
//! number that names the job, rank 0's port, and its addresses. Rank 0's process reserves the port when it
//! makes the identifier, and listens on it when it joins: until then callers are refused at once and try
//! again, where a listener that nobody serves would let them wait.

use std::collections::BTreeMap;
use std::fmt;
use std::net::{IpAddr, SocketAddr};

use parking_lot::Mutex;
use sha2::{Digest, Sha256};
use socket2::Socket;

use super::identity::Identity;
use super::interface::outside_addresses;
use super::introduction::RootInfo;
use super::job::shortened;
use super::key::{JobKey, fill_random, hex};
use super::master::Master;
use crate::fields::Fields;
use crate::{Error, Rank, Result};

const MAGIC: [u8; 8] = *b"brevity\0";

/// The version of the form below.
const FORM: u16 = 1;

/// Random, to tell jobs apart.
type Number = [u8; 8];

const CHECKSUM_BYTES: usize = 8;

/// Of all addresses together, each with its family before it.
const ADDRESS_BYTES: usize = JobId::BYTES - 22 - JobKey::GENERATED_BYTES - CHECKSUM_BYTES;

/// The port of each identifier that this process has made as rank 0 and has not joined with; `None` while it
/// joins.
static RESERVED: Mutex<BTreeMap<Number, Option<Port>>> = Mutex::new(BTreeMap::new());

/// A reserved port, and where to listen.
struct Port {
    #[expect(dead_code, reason = "held, not used")]
    reserved: Socket,
    listen: SocketAddr,
}

/// The identifier of one job, for one group: 128 bytes that rank 0 makes, and that the caller brings to the
/// other ranks.
///
/// Who has the bytes can join the job: they contain its key, unless the user gives one to every rank. So the
/// store that carries them must be trusted. They are only valid between equal versions of this library.
#[derive(Clone, PartialEq, Eq)]
pub struct JobId {
    root: RootInfo,
    number: Number,
}

impl JobId {
    /// Its length as bytes.
    pub const BYTES: usize = 128;

    /// Makes the identifier of a new job with this process as rank 0, reachable at all of this host's
    /// addresses, or only on loopback where it has no others.
    ///
    /// A port stays reserved until this process has joined with the identifier, has
    /// [forgotten](Self::forget) it, or ends.
    ///
    /// # Errors
    /// [`Error::System`] when the system has no port or no random bytes.
    pub fn new() -> Result<Self> {
        Self::of(&Identity::new(Rank(0), 2, Master { host: String::new(), port: 0 }))
    }

    /// Like [`new`](Self::new), with the interface, the ports and the announced address of `identity`. If it
    /// has a key, the identifier contains none, and every rank must have the same one.
    ///
    /// # Errors
    /// As [`new`](Self::new); [`Error::Environment`] when this host does not have the interface.
    pub fn of(identity: &Identity) -> Result<Self> {
        let is_alone = identity.interface.is_none() && outside_addresses()?.is_empty();
        let identity = &Identity { one_host: identity.one_host || is_alone, ..identity.clone() };
        let (root, reserved, listen) = RootInfo::offer(identity)?;
        let mut number = Number::default();
        fill_random(&mut number)?;
        let id = Self { root: RootInfo { addresses: fitting(root.addresses), ..root }, number };
        RESERVED.lock().insert(number, Some(Port { reserved, listen }));
        Ok(id)
    }

    /// Magic 8, form 2, flags 2, port 2, number 8, key 32, addresses 66, checksum 8; integers little-endian.
    /// The flag 1 says that there is a key. An address is preceded by its family, 4 or 6; the rest is zero.
    #[must_use]
    pub fn to_bytes(&self) -> [u8; Self::BYTES] {
        let key = self.root.key.as_ref().map_or(&[0; JobKey::GENERATED_BYTES][..], JobKey::bytes);
        let flags = u16::from(self.root.key.is_some());
        let numbers = [FORM, flags, self.root.port].map(u16::to_le_bytes).concat();
        let addresses: Vec<u8> = self.root.addresses.iter().flat_map(encode_address).collect();
        let content = [&MAGIC[..], &numbers, &self.number, key, &addresses].concat();
        let mut bytes = [0; Self::BYTES];
        let (body, end) = bytes.split_at_mut(Self::BYTES - CHECKSUM_BYTES);
        body[..content.len()].copy_from_slice(&content);
        end.copy_from_slice(&checksum(body));
        bytes
    }

    /// Reads what [`to_bytes`](Self::to_bytes) has made.
    ///
    /// # Errors
    /// [`Error::JobId`] when the bytes are not, or no longer, those of an identifier of this version.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self> {
        let wrong = |why: String| Err(Error::JobId { why });
        let Ok(bytes) = <&[u8; Self::BYTES]>::try_from(bytes) else {
            return wrong(format!("{} bytes, expected {}", bytes.len(), Self::BYTES));
        };
        if bytes.iter().all(|&byte| byte == 0) {
            return wrong("only zeros: has rank 0 stored it yet?".into());
        }
        let (body, end) = bytes.split_at(Self::BYTES - CHECKSUM_BYTES);
        if !body.starts_with(&MAGIC) {
            return wrong("other data: are these the bytes that rank 0 has made?".into());
        }
        if checksum(body) != end {
            return wrong("damaged: its checksum is wrong".into());
        }
        match Self::decode(body) {
            Ok(Some(id)) => Ok(id),
            Ok(None) => wrong("damaged: its content is invalid".into()),
            Err(form) => {
                wrong(format!("of form {form}, expected {FORM}: do all ranks run the same version?"))
            }
        }
    }

    /// These bytes with the checksum that they must have.
    #[cfg(any(test, feature = "fuzzing"))]
    pub(super) fn sealed(mut bytes: [u8; Self::BYTES]) -> [u8; Self::BYTES] {
        let (body, end) = bytes.split_at_mut(Self::BYTES - CHECKSUM_BYTES);
        end.copy_from_slice(&checksum(body));
        bytes
    }

    /// Decodes all but the checksum; `Err` if the form is another.
    fn decode(body: &[u8]) -> std::result::Result<Option<Self>, u16> {
        let mut fields = Fields(&body[MAGIC.len()..]);
        match fields.array().map(u16::from_le_bytes) {
            Some(FORM) => Ok(Self::decode_form(fields)),
            form => Err(form.unwrap_or_default()),
        }
    }

    fn decode_form(mut fields: Fields<'_>) -> Option<Self> {
        let flags = u16::from_le_bytes(fields.array()?);
        let port = u16::from_le_bytes(fields.array()?);
        let (number, key) = (fields.array()?, fields.array::<{ JobKey::GENERATED_BYTES }>()?);
        let key = match flags {
            0 if key == [0; JobKey::GENERATED_BYTES] => None,
            1 => Some(JobKey::generated(key)),
            _ => return None,
        };
        let mut addresses = Vec::new();
        while let Some(family) = fields.0.first().copied().filter(|&family| family != 0) {
            fields.0 = &fields.0[1..];
            addresses.push(match family {
                4 => IpAddr::from(fields.array::<4>()?),
                6 => IpAddr::from(fields.array::<16>()?),
                _ => return None,
            });
        }
        let valid = port != 0 && !addresses.is_empty() && fields.0.iter().all(|&byte| byte == 0);
        valid.then_some(Self { root: RootInfo { key, port, addresses }, number })
    }

    /// The identity that joins by this identifier; for rank 0 also its claim to the port.
    pub(super) fn introduce(&self, identity: &Identity) -> Result<(Identity, Option<Claim>)> {
        let mut resolved = self.resolve(identity)?;
        if identity.rank != Rank(0) {
            return Ok((resolved, None));
        }
        let claim = Claim::of(self)?;
        if let (Some(port), Some(published)) = (&claim.port, &mut resolved.published) {
            (resolved.port_reserved, published.listen) = (true, port.listen);
        }
        Ok((resolved, Some(claim)))
    }

    /// The identity with this identifier's key, addresses and job.
    pub(super) fn resolve(&self, identity: &Identity) -> Result<Identity> {
        let job = shortened(format!("{} {}", identity.job, self.name()).trim().to_owned());
        Ok(Identity { job, ..self.root.apply(identity)? })
    }

    /// Gives up the port, if this process has reserved it: no later join can be rank 0 with the identifier.
    pub fn forget(&self) {
        RESERVED.lock().remove(&self.number);
    }

    fn name(&self) -> String {
        format!("id {}", hex(&self.number))
    }
}

/// Shows the job and its addresses, but not the key.
impl fmt::Debug for JobId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let RootInfo { port, addresses, .. } = &self.root;
        write!(f, "JobId({}, port {port} of {addresses:?})", self.name())
    }
}

/// Rank 0's port while it joins; the port is reserved again if joining fails.
pub(super) struct Claim {
    number: Number,
    /// `None` once the rank has joined.
    port: Option<Port>,
}

impl Claim {
    fn of(id: &JobId) -> Result<Self> {
        let port = RESERVED.lock().get_mut(&id.number).and_then(Option::take);
        let why = "not this process's to join with as rank 0: rank 0 makes a new one for each group, and \
                   joins in the same process";
        let port = port.ok_or_else(|| Error::JobId { why: why.into() })?;
        Ok(Self { number: id.number, port: Some(port) })
    }

    /// The rank has joined: nobody needs the port any more.
    pub(super) fn redeem(mut self) {
        self.port = None;
        RESERVED.lock().remove(&self.number);
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        if let Some(port) = self.port.take()
            && let Some(place) = RESERVED.lock().get_mut(&self.number)
        {
            *place = Some(port);
        }
    }
}

/// As many of the addresses, from the first, as there is room for.
fn fitting(mut addresses: Vec<IpAddr>) -> Vec<IpAddr> {
    let mut room = ADDRESS_BYTES;
    addresses.retain(|address| {
        let left = room.checked_sub(encode_address(address).len());
        room = left.unwrap_or(room);
        left.is_some()
    });
    addresses
}

fn encode_address(address: &IpAddr) -> Vec<u8> {
    match address {
        IpAddr::V4(address) => [&[4][..], &address.octets()].concat(),
        IpAddr::V6(address) => [&[6][..], &address.octets()].concat(),
    }
}

fn checksum(body: &[u8]) -> [u8; CHECKSUM_BYTES] {
    let digest = Sha256::digest(body);
    std::array::from_fn(|at| digest[at])
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn sample(addresses: &[&str], key: bool) -> JobId {
        let key = key.then(|| JobKey::generate().unwrap());
        let addresses = addresses.iter().map(|address| address.parse().unwrap()).collect();
        JobId { root: RootInfo { key, port: 4000, addresses: fitting(addresses) }, number: [7; 8] }
    }

    #[test]
    fn identifiers_come_back() {
        for id in [
            sample(&["127.0.0.1"], true),
            sample(&["::1"], false),
            sample(&["192.0.2.7", "fd00::2", "198.51.100.1"], true),
        ] {
            assert_eq!(JobId::from_bytes(&id.to_bytes()).unwrap(), id);
        }
    }

    #[test]
    fn the_best_addresses_fit() {
        let many: Vec<String> = (0..9).map(|last| format!("fd00::{last}")).collect();
        let many: Vec<&str> = many.iter().map(String::as_str).chain(["192.0.2.7"]).collect();
        let id = sample(&many, true);
        assert_eq!(
            id.root.addresses,
            sample(&["fd00::0", "fd00::1", "fd00::2", "192.0.2.7"], true).root.addresses
        );
        assert_eq!(JobId::from_bytes(&id.to_bytes()).unwrap(), id);
    }

    #[test]
    fn every_changed_byte_is_noticed_in_one_line() {
        let bytes = sample(&["192.0.2.7", "fd00::2"], true).to_bytes();
        for place in 0..bytes.len() {
            for change in 1..=255 {
                let mut wrong = bytes;
                wrong[place] ^= change;
                let Err(Error::JobId { why }) = JobId::from_bytes(&wrong) else {
                    panic!("byte {place} changed by {change}");
                };
                assert!(!why.contains('\n') && why.len() < 100, "{why}");
            }
        }
        for length in (0..JobId::BYTES).chain([JobId::BYTES + 1, 4096]) {
            assert!(JobId::from_bytes(&vec![1; length]).is_err(), "{length} bytes");
        }
    }

    #[test]
    fn what_is_wrong_is_said() {
        let text = |bytes: &[u8]| JobId::from_bytes(bytes).unwrap_err().to_string();
        assert_eq!(text(b"short"), "the job id is 5 bytes, expected 128");
        assert_eq!(text(&[0; 128]), "the job id is only zeros: has rank 0 stored it yet?");
        assert_eq!(text(&[1; 128]), "the job id is other data: are these the bytes that rank 0 has made?");
        let mut other = sample(&["192.0.2.7"], true).to_bytes();
        other[8] = 2;
        assert_eq!(text(&other), "the job id is damaged: its checksum is wrong");
        assert_eq!(
            text(&JobId::sealed(other)),
            "the job id is of form 2, expected 1: do all ranks run the same version?"
        );
    }

    #[test]
    fn the_key_is_never_shown() {
        let id = sample(&["192.0.2.7"], true);
        assert_eq!(format!("{id:?}"), "JobId(id 0707070707070707, port 4000 of [192.0.2.7])");
    }

    proptest! {
        /// What is accepted is written again as the same bytes.
        #[test]
        fn no_content_panics(content in prop::collection::vec(any::<u8>(), JobId::BYTES), flags in 0..3u8) {
            let mut bytes: [u8; JobId::BYTES] = content.try_into().unwrap();
            bytes[..MAGIC.len()].copy_from_slice(&MAGIC);
            bytes[8..12].copy_from_slice(&[1, 0, flags, 0]);
            // Of the addresses, the first is likely to be valid.
            bytes[54] = 4;
            bytes[59..JobId::BYTES - CHECKSUM_BYTES].fill(0);
            let bytes = JobId::sealed(bytes);
            if let Ok(id) = JobId::from_bytes(&bytes) {
                prop_assert_eq!(id.to_bytes(), bytes);
            }
        }
    }

    #[test]
    fn a_port_is_claimed_once() {
        let mut identity = Identity::new(Rank(0), 2, Master { host: String::new(), port: 0 });
        identity.interface = Some("127.0.0.1".into());
        let id = JobId::of(&identity).unwrap();
        let (resolved, claim) = id.introduce(&identity).unwrap();
        assert_eq!((resolved.key, resolved.port_reserved), (id.root.key.clone(), true));
        let twice = id.introduce(&identity).map(|_| ()).unwrap_err().to_string();
        assert!(twice.contains("rank 0 makes a new one for each group"), "{twice}");
        drop(claim);
        let (_, claim) = id.introduce(&identity).unwrap();
        claim.unwrap().redeem();
        assert!(id.introduce(&identity).is_err());
        assert!(!RESERVED.lock().contains_key(&id.number));
        let (other, claim) = id.introduce(&Identity { rank: Rank(1), ..identity }).unwrap();
        assert!(claim.is_none() && other.job == id.name());
    }

    #[test]
    fn a_forgotten_port_does_not_come_back() {
        let mut identity = Identity::new(Rank(0), 2, Master { host: String::new(), port: 0 });
        identity.interface = Some("127.0.0.1".into());
        let id = JobId::of(&identity).unwrap();
        let claimed = id.introduce(&identity).unwrap();
        id.forget();
        drop(claimed);
        assert!(id.introduce(&identity).is_err());
        assert!(!RESERVED.lock().contains_key(&id.number));
    }
}
