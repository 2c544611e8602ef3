//! Which processes can reach each other's memory: those of one running kernel with one owner.

use std::os::unix::fs::MetadataExt;
use std::sync::OnceLock;

use crate::fields::Fields;

/// The boot id of a running kernel.
pub(crate) type Boot = [u8; 16];

/// The boot id of this kernel; `None` where the system does not tell. Reads a file the first time.
pub(crate) fn own() -> Option<Boot> {
    static BOOT: OnceLock<Option<Boot>> = OnceLock::new();
    *BOOT.get_or_init(|| decode(&std::fs::read_to_string("/proc/sys/kernel/random/boot_id").ok()?))
}

/// The owner of a process's memory. The system lets processes of one kernel reach each other's memory, by
/// `/proc` or System V shared memory, where their owners are equal. Containers without root have different
/// user namespaces.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MemoryOwner {
    pub(crate) boot: Boot,
    user_namespace: u64,
    user: u32,
}

impl MemoryOwner {
    pub(crate) const BYTES: usize = 28;

    /// Of this process; `None` where the system does not tell.
    pub(crate) fn own() -> Option<Self> {
        let user_namespace = std::fs::metadata("/proc/self/ns/user").ok()?.ino();
        Some(Self { boot: own()?, user_namespace, user: rustix::process::geteuid().as_raw() })
    }

    /// The boot, the namespace, the user; zeros where nothing is known.
    pub(crate) fn encode(owner: Option<Self>) -> Vec<u8> {
        let Self { boot, user_namespace, user } = owner.unwrap_or_default();
        [&boot[..], &user_namespace.to_le_bytes(), &user.to_le_bytes()].concat()
    }

    pub(crate) fn decode(bytes: &[u8; Self::BYTES]) -> Option<Self> {
        let mut fields = Fields(bytes);
        let (boot, user_namespace, user) = (fields.array()?, fields.u64()?, fields.u32()?);
        (boot != Boot::default()).then_some(Self { boot, user_namespace, user })
    }

    /// An owner unlike any real one.
    #[cfg(test)]
    pub(crate) fn sample(boot: u8, user_namespace: u64, user: u32) -> Self {
        Self { boot: [boot; 16], user_namespace, user }
    }
}

/// Reads a UUID as the kernel writes it.
fn decode(text: &str) -> Option<Boot> {
    let digits: String = text.trim().chars().filter(|character| *character != '-').collect();
    (digits.len() == 32).then_some(())?;
    Some(u128::from_str_radix(&digits, 16).ok()?.to_be_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_kernel_runs_once() {
        assert!(own().is_some() && own() == own());
        let expected = 0x0123_4567_89ab_cdef_0123_4567_89ab_cdef_u128.to_be_bytes();
        assert_eq!(decode("01234567-89ab-cdef-0123-456789abcdef\n"), Some(expected));
        for text in ["", "1", "01234567-89ab-cdef-0123-456789abcdex", "01234567-89ab-cdef-0123-456789abcdef0"]
        {
            assert_eq!(decode(text), None, "{text}");
        }
    }
}
