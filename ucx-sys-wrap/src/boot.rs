//! Which run of which kernel this is: the same for all processes that can reach each other's memory.

use std::sync::OnceLock;

/// The run of a kernel.
pub(crate) type Boot = [u8; 16];

/// The run of this kernel; `None` where the system does not say. Costs a read of a file the first time.
pub(crate) fn own() -> Option<Boot> {
    static BOOT: OnceLock<Option<Boot>> = OnceLock::new();
    *BOOT.get_or_init(|| decode(&std::fs::read_to_string("/proc/sys/kernel/random/boot_id").ok()?))
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
