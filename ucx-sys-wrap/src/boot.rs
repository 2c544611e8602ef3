//! Which processes can reach each other's memory: those of one run of a kernel, with one owner.

use std::os::unix::fs::MetadataExt;
use std::sync::OnceLock;

/// The run of a kernel.
pub(crate) type Boot = [u8; 16];

/// The run of this kernel; `None` where the system does not say. Costs a read of a file the first time.
pub(crate) fn own() -> Option<Boot> {
    static BOOT: OnceLock<Option<Boot>> = OnceLock::new();
    *BOOT.get_or_init(|| decode(&std::fs::read_to_string("/proc/sys/kernel/random/boot_id").ok()?))
}

/// Who owns the memory of a process. The system lets the processes of one kernel reach each other's memory, by
/// `/proc` or by System V's means, where their owners are equal: containers without root have a user
/// namespace each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryOwner {
    pub(crate) boot: Boot,
    user_namespace: u64,
    user: u32,
}

impl MemoryOwner {
    pub(crate) const BYTES: usize = 28;

    /// Of this process; `None` where the system does not say.
    pub(crate) fn own() -> Option<Self> {
        let user_namespace = std::fs::metadata("/proc/self/ns/user").ok()?.ino();
        Some(Self { boot: own()?, user_namespace, user: rustix::process::geteuid().as_raw() })
    }

    /// The boot, the namespace, the user; zeros where nothing is known.
    pub(crate) fn encode(owner: Option<Self>) -> [u8; Self::BYTES] {
        let mut bytes = [0; Self::BYTES];
        if let Some(Self { boot, user_namespace, user }) = owner {
            bytes[..16].copy_from_slice(&boot);
            bytes[16..24].copy_from_slice(&user_namespace.to_le_bytes());
            bytes[24..].copy_from_slice(&user.to_le_bytes());
        }
        bytes
    }

    pub(crate) fn decode(bytes: &[u8; Self::BYTES]) -> Option<Self> {
        let (boot, rest) = bytes.split_first_chunk()?;
        let (user_namespace, user) = rest.split_first_chunk()?;
        let (user_namespace, user) = (u64::from_le_bytes(*user_namespace), *user.first_chunk()?);
        (*boot != Boot::default()).then_some(Self {
            boot: *boot,
            user_namespace,
            user: u32::from_le_bytes(user),
        })
    }

    /// An owner that is like no real one.
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
