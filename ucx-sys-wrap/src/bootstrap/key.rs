//! The secret that the ranks of a job share.

use std::ffi::OsStr;
use std::fmt::{self, Write as _};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::Arc;

use crate::{Error, Result};

/// The secret that all ranks of a job share and prove to each other; it is never sent.
#[derive(Clone, PartialEq, Eq)]
pub struct JobKey(Arc<[u8]>);

impl JobKey {
    /// The minimum length of a key.
    pub const MIN_BYTES: usize = 16;

    pub(super) const GENERATED_BYTES: usize = 32;

    /// Parses a key: hexadecimal digits of at least 16 bytes, or else any text of at least 16 bytes, without
    /// the white space around it. `None` when it is too short.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let text = text.trim();
        if let Some(bytes) = from_hex(text).filter(|bytes| bytes.len() >= Self::MIN_BYTES) {
            return Some(Self(bytes.into()));
        }
        (text.len() >= Self::MIN_BYTES).then(|| Self(text.as_bytes().into()))
    }

    /// Makes a new random key.
    ///
    /// # Errors
    /// [`Error::System`] when the system has no random bytes.
    pub fn generate() -> Result<Self> {
        let mut bytes = [0; Self::GENERATED_BYTES];
        fill_random(&mut bytes)?;
        Ok(Self(Arc::new(bytes)))
    }

    /// The key as hexadecimal digits, for [`parse`](Self::parse).
    #[must_use]
    pub fn to_hex(&self) -> String {
        hex(&self.0)
    }

    /// Reads the key in a file; returns a warning too when others can read the file.
    pub(super) fn from_file(variable: &'static str, path: &OsStr) -> Result<(Self, Option<String>)> {
        let path = Path::new(path);
        let failed =
            |error| Error::system(format!("can't read the key of {variable} in {}", path.display()), error);
        let mode = fs::metadata(path).map_err(failed)?.permissions().mode() & 0o777;
        let exposed = (mode & 0o077 != 0).then(|| {
            format!("others can read the job's key in {} (mode {mode:o}): use chmod 600", path.display())
        });
        let key =
            Self::parse(&fs::read_to_string(path).map_err(failed)?).ok_or_else(|| Error::Environment {
                variable,
                found: format!("the file {:?} with a shorter key", path.display().to_string()),
                expected: "a file with a key of at least 16 bytes, as from `openssl rand -hex 32`",
            })?;
        Ok((key, exposed))
    }

    /// A key that was generated elsewhere.
    pub(super) fn generated(bytes: [u8; Self::GENERATED_BYTES]) -> Self {
        Self(Arc::new(bytes))
    }

    pub(super) fn bytes(&self) -> &[u8] {
        &self.0
    }
}

/// Does not show the key.
impl fmt::Debug for JobKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JobKey(..)")
    }
}

/// Fills `bytes` from the system's random source.
pub(crate) fn fill_random(bytes: &mut [u8]) -> Result<()> {
    getrandom::fill(bytes)
        .map_err(|error| Error::system("can't get random bytes", std::io::Error::other(error.to_string())))
}

pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::with_capacity(2 * bytes.len()), |mut text, byte| {
        // Writing to a string can't fail.
        let _ = write!(text, "{byte:02x}");
        text
    })
}

fn from_hex(text: &str) -> Option<Vec<u8>> {
    let digits: Option<Vec<u32>> = text.chars().map(|digit| digit.to_digit(16)).collect();
    let digits = digits.filter(|digits| digits.len() % 2 == 0)?;
    Some(digits.chunks_exact(2).map(|pair| (pair[0] << 4 | pair[1]) as u8).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hexadecimal_text_and_short_keys() {
        assert_eq!(
            JobKey::parse("000102030405060708090a0b0c0d0E0f\n").unwrap().bytes(),
            (0..16).collect::<Vec<u8>>()
        );
        assert_eq!(JobKey::parse("correct horse battery").unwrap().bytes(), b"correct horse battery");
        assert_eq!(
            JobKey::parse("0123456789abcdef").unwrap().bytes(),
            b"0123456789abcdef",
            "8 bytes of hex are text"
        );
        assert_eq!(JobKey::parse("  too short    \n"), None);
        assert_eq!(JobKey::parse(""), None);
    }

    #[test]
    fn generated_keys_differ_and_come_back() {
        let (first, second) = (JobKey::generate().unwrap(), JobKey::generate().unwrap());
        assert_ne!(first, second);
        assert_eq!(JobKey::parse(&first.to_hex()), Some(first));
    }

    #[test]
    fn a_key_is_never_shown() {
        assert_eq!(format!("{:?}", JobKey::parse("correct horse battery").unwrap()), "JobKey(..)");
    }

    #[test]
    fn a_key_file_is_read_and_a_missing_one_named() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("key");
        fs::write(&path, "correct horse battery\n").unwrap();
        let key = |mode| {
            fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
            JobKey::from_file("BREVITY_KEY_FILE", path.as_os_str()).unwrap()
        };
        let (found, exposed) = key(0o644);
        assert_eq!(found.bytes(), b"correct horse battery");
        assert!(exposed.is_some_and(|what| what.contains("(mode 644): use chmod 600")));
        assert_eq!(key(0o600), (found, None));
        fs::write(&path, "short").unwrap();
        let short = JobKey::from_file("BREVITY_KEY_FILE", path.as_os_str()).unwrap_err();
        assert!(matches!(short, Error::Environment { variable: "BREVITY_KEY_FILE", .. }));
        let missing =
            JobKey::from_file("BREVITY_KEY_FILE", OsStr::new("/nowhere/key")).unwrap_err().to_string();
        assert!(missing.contains("BREVITY_KEY_FILE in /nowhere/key"), "{missing}");
    }
}
