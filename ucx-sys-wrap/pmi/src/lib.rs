//! One text from rank 0 to all ranks of a job, through the launcher that started them.
//!
//! Launchers of MPI programs have a small key-value store for the processes that they start. There are two
//! interfaces:
//!
//! - [`wire`]: the PMI-1 protocol on a descriptor that the launcher hands down (`mpiexec` of MPICH, `srun
//!   --mpi=pmi2`);
//! - [`pmix`]: the library `libpmix`, loaded at run time (`mpirun` of Open MPI, `srun --mpi=pmix`).
//!
//! Both do the same: rank 0 stores a text, all ranks pass a barrier, the others read it, and all finalize.
//! Nothing stays open. The launcher's answers are checked before they are used, and everything ends by a
//! deadline.
//!
//! `unsafe` is needed to call the C library, and to use a descriptor whose number is in a variable.

mod error;
pub mod pmix;
pub mod wire;

pub use error::{Error, Result};

/// The longest text that is stored, in bytes; every launcher accepts this length.
pub const MAX_TEXT_BYTES: usize = 512;

/// The key in the launcher's store.
const KEY: &str = "brevity-rendezvous";

/// Whether the text fits the line protocol: printable, without blanks and separators.
fn is_plain(text: &str) -> bool {
    let plain = |byte: u8| byte.is_ascii_graphic() && !b"=;\"\\".contains(&byte);
    !text.is_empty() && text.len() <= MAX_TEXT_BYTES && text.bytes().all(plain)
}

/// Refuses a text that can't be stored.
fn check(text: &str) -> Result<()> {
    if is_plain(text) { Ok(()) } else { Err(Error::Unfit { text: text.to_owned() }) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_that_fit() {
        assert!(is_plain("1,4000,[fd00::2],10.0.0.7,-"));
        assert!(is_plain(&"x".repeat(MAX_TEXT_BYTES)));
        for text in ["", "a b", "a=b", "a;b", "line\n", "caf\u{e9}", "a\"", &"x".repeat(MAX_TEXT_BYTES + 1)] {
            assert!(!is_plain(text), "{text:?}");
        }
    }
}
